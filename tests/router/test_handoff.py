"""A prompt is computed on one instance and answered by another, and clients never notice more."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from .handoff_views import (
    BODY,
    PROMPT,
    SPLIT,
    TOLD,
    ask_handoff,
    part_of,
    wait_outcome,
)

CHAT = "/v1/chat/completions"
MESSAGES = {"messages": [{"role": "user", "content": PROMPT}]}
Door = Callable[..., AbstractAsyncContextManager[Any]]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body", "limit"),
    [
        ("/generate", {"text": PROMPT}, lambda b: b["sampling_params"]["max_new_tokens"]),
        ("/v1/completions", {"prompt": PROMPT}, lambda b: b["max_tokens"]),
        (CHAT, MESSAGES, lambda b: b["max_completion_tokens"]),
        ("/invocations", MESSAGES, lambda b: b["max_completion_tokens"]),
        ("/v1/messages", {**MESSAGES, "max_tokens": 8}, lambda b: b["max_tokens"]),
        ("/v1/responses", {"input": PROMPT}, lambda b: b["max_output_tokens"]),
        ("/api/chat", MESSAGES, lambda b: b["options"]["num_predict"]),
        ("/api/generate", {"prompt": PROMPT}, lambda b: b["options"]["num_predict"]),
    ],
)
def test_every_endpoint_that_generates_hands_off(
    door_with_roles: Door, path: str, body: dict[str, Any], limit: Any, stream: bool
) -> None:
    async def run() -> None:
        async with door_with_roles(SPLIT) as front:
            reply = await front.post(path, {**body, "stream": stream})
            assert reply.status == 200
            assert (reply.headers["x-bana-instance"], reply.headers[TOLD]) == ("d", "p")
            (copy,), (own,) = front.asked("p", path), front.asked("d", path)
            assert (part_of(copy), part_of(own)) == ("prefill", "decode")
            assert (copy.body["stream"], own.body["stream"]) == (False, stream)
            assert limit(copy.body) == (3 if path == "/v1/responses" else 1)
            for field in ("text", "prompt", "messages", "input"):
                assert copy.body.get(field) == own.body.get(field)
            for field in ("rid", "request_id"):
                ids = (copy.body.get(field), own.body.get(field))
                assert ids == (None, None) or ids[0] != ids[1]
            # What is promised is told to both alike, on the clock of this host.
            told = [s.body.get("sampling_params", s.body).get("custom_params") for s in (copy, own)]
            dues = [params and params["bana_deadline_s"] for params in told]
            assert dues[0] == dues[1]
            await wait_outcome(front, done=1)
            assert (await ask_handoff(front)) == {"sent": 1, "outcomes": {"done": 1}, "skipped": {}}

    asyncio.run(run())


def test_the_copy_goes_first(door_with_roles: Door) -> None:
    async def run() -> None:
        async with door_with_roles(SPLIT) as front:
            # One list for both, so that their order shows.
            log = front.stubs[0].server.log.requests
            front.stubs[1].server.log.requests = log
            for _ in range(5):
                assert (await front.post("/generate", BODY)).status == 200
                await front.wait_until(lambda: len(log) % 2 == 0)
            assert [part_of(seen) for seen in log] == ["prefill", "decode"] * 5

    asyncio.run(run())


def test_a_full_prefill_instance_keeps_nobody_waiting(door_with_roles: Door) -> None:
    async def run() -> None:
        roles = {"d": "decode", "e": "decode", "p": "prefill"}
        limits = {"max_unanswered_per_instance": 1}
        slow = {"first_delay_s": 30.0}
        async with door_with_roles(roles, on_p=slow, on_d=slow, limits=limits) as front:
            first = asyncio.create_task(front.post("/generate", BODY))
            await front.wait_until(lambda: len(front.seen("/generate")) == 2)
            reply = await front.post("/generate", BODY)
            assert (reply.status, reply.headers["x-bana-instance"]) == (200, "e")
            assert TOLD not in reply.headers
            assert (await ask_handoff(front))["skipped"] == {"prefillers_full": 1}
            first.cancel()

    asyncio.run(run())


def test_without_a_prefill_instance_alive_the_others_do_it_all(door_with_roles: Door) -> None:
    async def run() -> None:
        async with door_with_roles(SPLIT, on_p={"is_ready": False}) as front:
            reply = await front.post("/generate", BODY)
            assert (reply.status, reply.headers["x-bana-instance"]) == (200, "d")
            assert (await ask_handoff(front))["skipped"] == {"no_prefiller": 1}
            # Prompts without an answer to decode are computed by whoever is there.
            assert (await front.post("/v1/embeddings", {"input": PROMPT})).status == 200
            assert len(front.asked("d", "/v1/embeddings")) == 1

    asyncio.run(run())


def test_without_a_decode_instance_alive_the_others_do_it_all(door_with_roles: Door) -> None:
    async def run() -> None:
        async with door_with_roles(SPLIT, on_d={"is_ready": False}) as front:
            reply = await front.post("/generate", BODY)
            assert (reply.status, reply.headers["x-bana-instance"]) == (200, "p")
            assert part_of(front.asked("p", "/generate")[0]) == "None"
            assert (await ask_handoff(front))["skipped"] == {"no_decoder": 1}

    asyncio.run(run())


def test_what_is_not_handed_off_goes_where_its_work_is_done(door_with_roles: Door) -> None:
    async def run() -> None:
        one = {"text": PROMPT, "sampling_params": {"max_new_tokens": 1}}
        async with door_with_roles(SPLIT) as front:
            for path, body, name in (
                ("/generate", {"text": "hi"}, "d"),
                ("/generate", {"text": [PROMPT, PROMPT]}, "d"),
                ("/generate", one, "p"),
                ("/v1/embeddings", {"input": PROMPT}, "p"),
            ):
                reply = await front.post(path, body)
                assert (reply.status, reply.headers["x-bana-instance"]) == (200, name)
            skipped = (await ask_handoff(front))["skipped"]
            assert skipped == {"short_prompt": 1, "several": 1, "one_token": 1}
            spread = Counter()
            for _ in range(6):
                spread[(await front.get("/v1/models")).headers["x-bana-instance"]] += 1
            assert set(spread) == {"d", "p"}

    asyncio.run(run())


def test_policies_that_take_turns_reach_everybody_of_a_role(door_with_roles: Door) -> None:
    async def run() -> None:
        roles = {"d": "decode", "e": "decode", "p": "prefill", "q": "prefill"}
        async with door_with_roles(roles, routing={"policy": "round_robin"}) as front:
            pairs = Counter()
            for _ in range(8):
                reply = await front.post("/generate", BODY)
                pairs[reply.headers["x-bana-instance"], reply.headers[TOLD]] += 1
            answered, computed = Counter(), Counter()
            for (decoder, prefiller), count in pairs.items():
                answered[decoder] += count
                computed[prefiller] += count
            assert (answered, computed) == ({"d": 4, "e": 4}, {"p": 4, "q": 4})

    asyncio.run(run())


def test_of_two_that_do_both_neither_computes_for_the_other(door_with_roles: Door) -> None:
    async def run() -> None:
        roles = {"b": "both", "c": "both", "d": "decode"}
        async with door_with_roles(roles, routing={"policy": "round_robin"}) as front:
            replies = [await front.post("/generate", BODY) for _ in range(6)]
            told = {(r.headers["x-bana-instance"], r.headers.get(TOLD)) for r in replies}
            assert {name for name, _ in told} == {"b", "c", "d"}
            assert all((prefiller is None) is (name != "d") for name, prefiller in told)

    asyncio.run(run())


def test_one_that_does_both_may_keep_its_prompt(door_with_roles: Door) -> None:
    async def run() -> None:
        roles = {"b": "both", "p": "prefill"}
        async with door_with_roles(roles, routing={"policy": "round_robin"}) as front:
            replies = [await front.post("/generate", BODY) for _ in range(4)]
            told = [(r.headers["x-bana-instance"], r.headers.get(TOLD)) for r in replies]
            assert told == [("b", None), ("b", "p")] * 2
            assert (await ask_handoff(front))["skipped"] == {"answerer_nearer": 2}

    asyncio.run(run())


def test_a_silent_store_hands_nothing_over(door_with_roles: Door) -> None:
    async def run() -> None:
        async with door_with_roles(SPLIT, store="silent") as front:
            reply = await front.post("/generate", BODY)
            assert (reply.status, reply.headers["x-bana-instance"]) == (200, "d")
            assert (await ask_handoff(front))["skipped"] == {"store_silent": 1}
            metrics = (await front.get("/metrics")).body.decode()
            assert 'bana_handoff_skips_total{reason="store_silent"} 1.0' in metrics

    asyncio.run(run())


@pytest.mark.parametrize(
    ("told", "obstacle"),
    [
        ({"on_p": {"namespace": "other weights"}}, "apart"),
        ({"on_p": {"namespace": ""}}, "apart"),
        ({"on_d": {"namespace": ""}}, "store_silent"),
    ],
)
def test_who_keeps_other_pages_computes_for_nobody(
    door_with_roles: Door, told: dict[str, Any], obstacle: str
) -> None:
    async def run() -> None:
        async with door_with_roles(SPLIT, **told) as front:
            reply = await front.post("/generate", BODY)
            assert (reply.status, reply.headers["x-bana-instance"]) == (200, "d")
            assert front.asked("p", "/generate") == []
            assert (await ask_handoff(front))["skipped"] == {obstacle: 1}

    asyncio.run(run())


def test_who_has_the_conversation_computes_its_next_turn(door_with_roles: Door) -> None:
    async def run() -> None:
        async with door_with_roles(SPLIT, handoff={"min_prompt_tokens": 200}) as front:
            said = [{"role": "user", "content": "word " * 400}]
            for turn in ("so", "and", "more " * 400):
                reply = await front.post(CHAT, {"messages": said, "session_id": "s"})
                assert reply.status == 200
                said += [{"role": "assistant", "content": "ok"}, {"role": "user", "content": turn}]
            # The first turn was new, the second one long: of the others little was.
            last = await front.post(CHAT, {"messages": said, "session_id": "s"})
            assert TOLD in last.headers
            told = await ask_handoff(front)
            assert (told["sent"], told["skipped"]) == (2, {"answerer_nearer": 2})
            other = [{"role": "user", "content": "other " * 400}]
            reply = await front.post(CHAT, {"messages": other, "session_id": "s"})
            assert TOLD in reply.headers

    asyncio.run(run())


def test_attached_servers_share_no_store(door: Door, tmp_path: Path) -> None:
    async def run() -> None:
        own = {"store": f"ipc://{tmp_path}/nobody", "handoff": {"min_prompt_tokens": 4}}
        async with door(**own) as front:
            await front.change_roles(a="prefill", b="decode")
            reply = await front.post("/generate", BODY)
            assert (reply.status, reply.headers["x-bana-instance"]) == (200, "b")
            assert (await ask_handoff(front))["skipped"] == {"foreign": 1}

    asyncio.run(run())


def test_hand_offs_can_be_switched_off(door_with_roles: Door) -> None:
    async def run() -> None:
        async with door_with_roles(SPLIT, handoff={"enabled": False}) as front:
            reply = await front.post("/generate", BODY)
            assert (reply.status, reply.headers["x-bana-instance"]) == (200, "d")
            assert front.asked("p", "/generate") == []
            assert await ask_handoff(front) is None

    asyncio.run(run())


def test_clients_cannot_tell_instances_apart_of(door_with_roles: Door) -> None:
    async def run() -> None:
        async with door_with_roles({"a": "both", "b": "both"}) as front:
            told = {"x-bana-handoff": "prefill"}
            assert (await front.post("/api/chat", MESSAGES, told)).status == 200
            (seen,) = front.seen("/api/chat")
            assert "x-bana-handoff" not in seen.headers
            body = {**MESSAGES, "custom_params": {"bana_handoff": "decode"}}
            reply = await front.post(CHAT, body)
            assert (reply.status, reply.code) == (400, "slo_param_unknown")

    asyncio.run(run())
