"""Requests spread as the policy says, by what the router believes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from bana.eval.stub import StubSettings

Door = Callable[..., AbstractAsyncContextManager[Any]]


@pytest.mark.parametrize("policy", ["least_load", "round_robin", "random", "cache_aware"])
def test_every_policy_serves(door: Door, policy: str) -> None:
    async def run() -> None:
        async with door(routing={"policy": policy}) as front:
            replies = [await front.post("/generate", {"text": f"{n}" * 300}) for n in range(24)]
            assert {r.status for r in replies} == {200}
            spread = Counter(r.headers["x-bana-instance"] for r in replies)
            assert set(spread) == {"a", "b"}

    asyncio.run(run())


def test_least_load_counts_at_dispatch(door: Door) -> None:
    async def run() -> None:
        slow = {"first_delay_s": 1.0}
        async with door(StubSettings(name="a", **slow), StubSettings(name="b", **slow)) as front:
            long = asyncio.create_task(front.post("/generate", {"text": "x" * 40_000}))
            await front.wait_until(lambda: front.seen("/generate"))
            short = await asyncio.gather(
                *(front.post("/generate", {"text": "y" * 400}) for _ in range(10))
            )
            busy = (await long).headers["x-bana-instance"]
            # Ten short prompts are less work than the one that is under way.
            assert busy not in {r.headers["x-bana-instance"] for r in short}

    asyncio.run(run())


def test_cache_aware_sends_a_prefix_where_it_was(door: Door) -> None:
    async def run() -> None:
        async with door(routing={"policy": "cache_aware"}) as front:
            homes: dict[str, set[str]] = {}
            for _ in range(4):
                for topic in ("p", "q", "r", "s"):
                    reply = await front.post("/generate", {"text": topic * 4000})
                    homes.setdefault(topic, set()).add(reply.headers["x-bana-instance"])
            assert all(len(home) == 1 for home in homes.values())
            assert len({name for home in homes.values() for name in home}) == 2

    asyncio.run(run())


@pytest.mark.parametrize(("shared", "reason"), [(200, "least_indexed"), (400, "prefix")])
def test_a_prompt_of_ids_is_known_as_far_as_its_ids_are(
    door: Door, shared: int, reason: str
) -> None:
    async def run() -> None:
        async with door(routing={"policy": "cache_aware"}) as front:
            # Each of a thousand ids takes eight bytes, of which a text would make two tokens.
            first = [100_000 + n for n in range(1000)]
            then = first[:shared] + [200_000 + n for n in range(1000 - shared)]
            for ids in (first, then):
                assert (await front.post("/generate", {"input_ids": ids})).status == 200
            assert (await count_reasons(front)).get(reason) == {"prefix": 1, "least_indexed": 2}[
                reason
            ]

    asyncio.run(run())


def test_a_system_prompt_and_tools_are_part_of_what_is_known(door: Door) -> None:
    async def run() -> None:
        async with door(routing={"policy": "cache_aware"}) as front:
            for topic in ("p", "q", "p", "q"):
                body = {"system": topic * 4000, "messages": [], "max_tokens": 9}
                assert (await front.post("/v1/messages", body)).status == 200
            assert await count_reasons(front) == {"least_indexed": 2.0, "prefix": 2.0}

    asyncio.run(run())


def test_a_cache_that_was_flushed_attracts_nobody(door: Door) -> None:
    async def run() -> None:
        async with door(routing={"policy": "cache_aware"}, auth={"admin_api_key": "k"}) as front:
            for _ in range(2):
                assert (await front.post("/generate", {"text": "p" * 4000})).status == 200
            flushed = await front.post("/flush_cache", b"", {"Authorization": "Bearer k"})
            assert flushed.status == 200
            assert (await front.post("/generate", {"text": "p" * 4000})).status == 200
            assert await count_reasons(front) == {"least_indexed": 2.0, "prefix": 1.0}

    asyncio.run(run())


async def count_reasons(front: Any) -> dict[str, float]:
    """How often a request was placed, by the policy's reason."""
    found: dict[str, float] = {}
    for line in (await front.get("/metrics")).body.decode().splitlines():
        if line.startswith("bana_dispatch_total{"):
            reason = line.partition('reason="')[2].partition('"')[0]
            found[reason] = found.get(reason, 0.0) + float(line.rpartition(" ")[2])
    return found
