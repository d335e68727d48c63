"""A key and a class may have so many requests in flight; one more is told so at once."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bana.eval.stub import Fault, StubSettings
from sglang_bana.router.errors import ApiError
from sglang_bana.router.quotas import Quota

CHAT = "/v1/chat/completions"
HELLO = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
CLASSES = {
    "standard": {"rank": 1, "ttft_ms": 1e4, "tpot_ms": 200.0},
    "batch": {"rank": 0, "ttft_ms": 1e5, "tpot_ms": 900.0, "max_requests": 2},
}
Door = Callable[..., AbstractAsyncContextManager[Any]]


def test_a_class_has_its_own_limit(door: Door) -> None:
    async def run() -> None:
        stub = StubSettings(name="a", fault=Fault.HANG)
        async with door(stub, slo={"classes": CLASSES}) as front:
            batch = {"x-bana-slo-class": "batch"}
            posting = [asyncio.create_task(front.post(CHAT, HELLO, headers=batch)) for _ in "ab"]
            await front.wait_until(lambda: len(front.seen(CHAT)) == 2)
            refused = await front.post(CHAT, HELLO, headers=batch)
            assert (refused.status, refused.code) == (429, "class_overloaded")
            assert "allowed: 2" in refused.error["message"]
            assert float(refused.headers["Retry-After"]) > 0
            others = [asyncio.create_task(front.post(CHAT, HELLO)) for _ in "abc"]
            await front.wait_until(lambda: len(front.seen(CHAT)) == 5)
            posting[0].cancel()
            await front.wait_until(lambda: len(front.running.door.flights) == 4)
            posting.append(asyncio.create_task(front.post(CHAT, HELLO, headers=batch)))
            await front.wait_until(lambda: len(front.seen(CHAT)) == 6)
            told = (await front.get("/metrics")).body.decode()
            assert 'bana_slo_outcome_total{outcome="rejected",slo_class="batch"} 1.0' in told
            for task in (*posting, *others):
                task.cancel()

    asyncio.run(run())


def test_a_key_has_its_own_limit(door: Door, tmp_path: Path) -> None:
    digests = [hashlib.sha256(key.encode()).hexdigest() for key in ("one", "two")]
    keys = tmp_path / "keys.toml"
    keys.write_text(
        f'[[keys]]\nname = "a"\nsha256 = "{digests[0]}"\nmax_requests = 1\n'
        f'[[keys]]\nname = "b"\nsha256 = "{digests[1]}"\n'
    )

    async def run() -> None:
        stub = StubSettings(name="a", fault=Fault.HANG)
        async with door(stub, auth={"keys_file": str(keys)}) as front:
            one, two = ({"Authorization": f"Bearer {key}"} for key in ("one", "two"))
            posting = [asyncio.create_task(front.post(CHAT, HELLO, headers=one))]
            await front.wait_until(lambda: front.seen(CHAT))
            refused = await front.post(CHAT, HELLO, headers=one)
            assert (refused.status, refused.code) == (429, "key_overloaded")
            posting += [asyncio.create_task(front.post(CHAT, HELLO, headers=two)) for _ in "ab"]
            await front.wait_until(lambda: len(front.seen(CHAT)) == 3)
            for task in posting:
                task.cancel()

    asyncio.run(run())


@given(
    st.lists(
        st.tuples(st.booleans(), st.integers(0, 8), st.sampled_from("ab"), st.integers(1, 3)),
        max_size=60,
    )
)
def test_counts_are_those_of_a_list(steps: list[tuple[bool, int, str, int]]) -> None:
    quota, inside = Quota("key", "full", 1.0), dict[int, str]()
    for does_enter, guest, name, limit in steps:
        count = Counter(inside.values())[name]
        if not does_enter:
            quota.leave(guest)
            inside.pop(guest, None)
        elif guest in inside:
            continue
        elif count >= limit:
            with pytest.raises(ApiError, match=f"{count} requests of key '{name}'"):
                quota.enter(guest, name, limit)
        else:
            quota.enter(guest, name, limit)
            inside[guest] = name
