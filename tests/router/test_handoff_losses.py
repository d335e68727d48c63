"""Whatever becomes of either side of a hand-off, its client gets its answer and nothing stays."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import aiohttp
import pytest

from bana.eval.stub import Fault

from .handoff_views import (
    BODY,
    PROMPT,
    SPLIT,
    STREAM,
    TOLD,
    ask_handoff,
    is_empty,
    part_of,
    wait_outcome,
)

CHAT = "/v1/chat/completions"
MESSAGES = {"messages": [{"role": "user", "content": PROMPT}]}
Door = Callable[..., AbstractAsyncContextManager[Any]]


def test_a_prompt_that_takes_for_ever_is_waited_for_by_nobody(door_with_roles: Door) -> None:
    async def run() -> None:
        async with door_with_roles(SPLIT, on_p={"fault": Fault.HANG}) as front:
            for _ in range(3):
                assert (await front.post("/generate", BODY)).status == 200
            # Whose answer is complete needs no prompt computed any more.
            await wait_outcome(front, dropped=3)
            await front.wait_until(lambda: is_empty(front))
            copies = {seen.body["rid"] for seen in front.asked("p", "/generate")}
            await front.wait_until(lambda: copies == set(front.aborts()))

    asyncio.run(run())


@pytest.mark.parametrize(
    ("fault", "outcome"),
    [
        (Fault.CLOSE_EARLY, "failed"),
        (Fault.REFUSE, "refused"),
        (Fault.UNAVAILABLE, "refused"),
        (Fault.FLAT_ERROR, "refused"),
    ],
)
def test_what_befalls_the_copy_costs_the_client_nothing(
    door_with_roles: Door, fault: Fault, outcome: str
) -> None:
    async def run() -> None:
        # It answers late enough for what befalls the copy to be seen.
        late = {"first_delay_s": 0.5}
        async with door_with_roles(SPLIT, on_p={"fault": fault}, on_d=late) as front:
            for body in (BODY, STREAM):
                reply = await front.post("/generate", body)
                assert (reply.status, reply.headers["x-bana-instance"]) == (200, "d")
            await wait_outcome(front, **{outcome: 2})
            assert len(front.asked("d", "/generate")) == 2
            metrics = (await front.get("/metrics")).body.decode()
            assert f'bana_handoffs_total{{outcome="prefill_{outcome}"}} 2.0' in metrics
            assert 'bana_handoffs_total{outcome="sent"} 2.0' in metrics
            assert "bana_retries_total{" not in metrics
            await front.wait_until(lambda: is_empty(front))

    asyncio.run(run())


def test_a_prompt_that_failed_is_work_of_whoever_answers(door_with_roles: Door) -> None:
    async def run() -> None:
        options = {"on_p": {"fault": Fault.UNAVAILABLE}, "on_d": {"first_delay_s": 3.0}}
        long = {"text": "x" * 4000}
        async with door_with_roles(SPLIT, **options) as front:
            for stub in front.stubs:
                # Beliefs alone: reports would say that nothing waits.
                stub.server.is_muted = True
            board = {s["name"]: s for s in (await front.status())["instances"]}
            posting = asyncio.create_task(front.post("/generate", long))
            await wait_outcome(front, refused=1)
            board = {s["name"]: s for s in (await front.status())["instances"]}
            assert (board["p"]["prefill_tokens"], board["d"]["prefill_tokens"]) == (0, 1001)
            assert (await posting).status == 200

    asyncio.run(run())


def test_a_prompt_is_work_where_it_is_computed(door_with_roles: Door) -> None:
    async def run() -> None:
        slow = {"first_delay_s": 3.0}
        async with door_with_roles(SPLIT, on_p=slow, on_d=slow) as front:
            posting = asyncio.create_task(front.post("/generate", {"text": "x" * 4000}))
            await front.wait_until(lambda: front.seen("/generate")[1:])
            board = {s["name"]: s for s in (await front.status())["instances"]}
            assert (board["p"]["prefill_tokens"], board["d"]["prefill_tokens"]) == (1001, 0)
            assert (board["p"]["in_flight"], board["d"]["in_flight"]) == (0, 1)
            assert (await posting).status == 200
            await front.wait_until(lambda: is_empty(front))

    asyncio.run(run())


@pytest.mark.parametrize("body", [BODY, STREAM])
def test_a_retry_is_handed_off_no_more(door_with_roles: Door, body: dict[str, Any]) -> None:
    async def run() -> None:
        roles = {"d": "decode", "e": "decode", "p": "prefill"}
        options = {"on_d": {"fault": Fault.CLOSE_EARLY}, "on_p": {"first_delay_s": 30.0}}
        turns = {"routing": {"policy": "round_robin"}}
        async with door_with_roles(roles, **options, **turns) as front:
            reply = await front.post("/generate", body)
            assert (reply.status, reply.headers["x-bana-instance"]) == (200, "e")
            assert TOLD not in reply.headers
            (copy,), (again,) = front.asked("p", "/generate"), front.asked("e", "/generate")
            assert (part_of(copy), part_of(again)) == ("prefill", "None")
            assert (await ask_handoff(front))["skipped"] == {"retry": 1}
            await wait_outcome(front, dropped=1)
            await front.wait_until(lambda: copy.body["rid"] in front.aborts())
            await front.wait_until(lambda: copy.outcome == "cancelled")
            await front.wait_until(lambda: is_empty(front))

    asyncio.run(run())


@pytest.mark.parametrize("body", [BODY, STREAM])
def test_who_leaves_is_aborted_on_both_sides(door_with_roles: Door, body: dict[str, Any]) -> None:
    async def run() -> None:
        slow = {"first_delay_s": 30.0}
        async with door_with_roles(SPLIT, on_p=slow, on_d=slow) as front:
            posting = asyncio.create_task(front.client.post(front.url + "/generate", json=body))
            await front.wait_until(lambda: len(front.seen("/generate")) == 2)
            posting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await posting
            rids = {seen.body["rid"] for seen in front.seen("/generate")}
            await front.wait_until(lambda: rids == set(front.aborts()))
            await front.wait_until(
                lambda: {s.outcome for s in front.seen("/generate")} == {"cancelled"}
            )
            await wait_outcome(front, dropped=1)
            await front.wait_until(lambda: is_empty(front))

    asyncio.run(run())


def test_a_drain_that_is_over_ends_both_sides(door_with_roles: Door) -> None:
    async def run() -> None:
        hanging = {"fault": Fault.HANG}
        limits = {"drain_timeout_s": 0.3}
        async with door_with_roles(SPLIT, on_p=hanging, on_d=hanging, limits=limits) as front:
            posting = asyncio.create_task(front.post("/generate", BODY))
            await front.wait_until(lambda: len(front.seen("/generate")) == 2)
            await front.running.door.drain()
            reply = await posting
            assert (reply.status, reply.code) == (503, "draining")
            await wait_outcome(front, dropped=1)
            await front.wait_until(lambda: is_empty(front))

    asyncio.run(run())


def test_a_hand_off_is_one_request_of_its_client(door_with_roles: Door) -> None:
    async def run() -> None:
        classes = {"only": {"rank": 0, "ttft_ms": 9000, "tpot_ms": 900, "max_requests": 1}}
        slow = {"first_delay_s": 3.0}
        async with door_with_roles(
            SPLIT,
            on_p=slow,
            on_d=slow,
            slo={"default_class": "only", "classes": classes},
            limits={"max_requests": 2, "max_unanswered_per_instance": 1},
        ) as front:
            posting = asyncio.create_task(front.post("/generate", BODY))
            await front.wait_until(lambda: len(front.seen("/generate")) == 2)
            assert (await front.status())["in_flight"] == 1
            refused = await front.post("/generate", BODY)
            assert (refused.status, refused.code) == (429, "class_overloaded")
            assert (await posting).status == 200
            # The one before has left, with all that it took.
            assert (await front.post("/generate", BODY)).headers[TOLD] == "p"

    asyncio.run(run())


def test_many_clients_leave_at_random_and_nothing_stays(door_with_roles: Door) -> None:
    async def visit(front: Any, rng: random.Random) -> None:
        body = STREAM if rng.random() < 0.6 else BODY
        try:
            async with asyncio.timeout(rng.uniform(0.01, 2.0)):
                await front.post("/generate", body)
        except (TimeoutError, aiohttp.ClientError):
            pass

    async def run() -> None:
        roles = {"d": "decode", "e": "both", "p": "prefill", "q": "prefill"}
        options = {
            "on_d": {"chunks": 8, "chunk_interval_s": 0.05, "first_delay_s": 0.1},
            "on_p": {"first_delay_s": 0.3},
            "on_q": {"fault": Fault.CLOSE_EARLY, "fault_limit": 60},
        }
        limits = {"max_unanswered_per_instance": 40}
        async with door_with_roles(roles, **options, limits=limits) as front:
            rng = random.Random(1)
            async with asyncio.TaskGroup() as group:
                for _ in range(300):
                    group.create_task(visit(front, rng))
            await front.wait_until(lambda: is_empty(front))
            handoff = await ask_handoff(front)
            assert handoff["sent"] == sum(handoff["outcomes"].values()) > 0

    asyncio.run(run())
