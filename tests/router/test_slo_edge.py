"""A promise is read from headers, body and key, echoed, and handed to the engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from bana.eval.stub import StubSettings
from bana.slo.budget import Budget, read_budget
from bana.slo.limits import Slo

CHAT = "/v1/chat/completions"
HELLO = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
Door = Callable[..., AbstractAsyncContextManager[Any]]
_LLMD = {"x-llm-d-slo-ttft-ms": "500", "x-llm-d-slo-tpot-ms": "40.5"}


def _echo(reply: Any) -> tuple[str, str, str]:
    names = ("x-bana-slo-class", "x-bana-slo-ttft-ms", "x-bana-slo-tpot-ms")
    return tuple(reply.headers[name] for name in names)  # type: ignore[return-value]


def _read_here(params: dict[str, object]) -> Budget:
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return read_budget(params, time.monotonic(), boot_id, Slo("other", 99.0, 99.0))


@pytest.mark.parametrize(
    ("headers", "params", "echo"),
    [
        ({}, None, ("standard", "10000", "250")),
        (_LLMD, None, ("standard", "500", "40.5")),
        ({"x-slo-ttft-ms": "700"}, None, ("standard", "700", "250")),
        ({**_LLMD, "x-slo-ttft-ms": "700"}, None, ("standard", "500", "40.5")),
        ({"x-bana-slo-class": "batch"}, None, ("batch", "120000", "2000")),
        ({}, {"bana_slo_class": "interactive"}, ("interactive", "2000", "100")),
        ({}, {"bana_slo_ttft_ms": 900, "bana_slo_tpot_ms": "30"}, ("standard", "900", "30")),
        (_LLMD, {"bana_slo_ttft_ms": 900, "other": 1}, ("standard", "500", "40.5")),
        ({}, {"bana_slo_ttft_ms": None}, ("standard", "10000", "250")),
    ],
)
@pytest.mark.parametrize("path", [CHAT, "/generate"])
def test_the_effective_promise_is_echoed(
    door: Door,
    headers: dict[str, str],
    params: dict[str, object] | None,
    echo: tuple[str, str, str],
    path: str,
) -> None:
    async def run() -> None:
        async with door(StubSettings(name="a")) as front:
            custom = {} if params is None else {"custom_params": params}
            native = {"text": "hi", "sampling_params": custom}
            body = native if path == "/generate" else {**HELLO, **custom}
            reply = await front.post(path, body, headers)
            assert reply.status == 200
            assert _echo(reply) == echo
            assert "x-bana-slo-clamped" not in reply.headers
            (seen,) = front.seen(path)
            inner = seen.body.get("sampling_params", seen.body)["custom_params"]
            assert inner["bana_slo_class"] == echo[0]
            assert inner["bana_ttft_s"] == pytest.approx(float(echo[1]) / 1e3)
            assert inner["bana_tpot_s"] == pytest.approx(float(echo[2]) / 1e3)
            assert not any(key.startswith("bana_slo_t") for key in inner)
            assert inner.get("other") == (params or {}).get("other")

    asyncio.run(run())


@pytest.mark.parametrize(
    ("headers", "params", "told"),
    [
        ({}, {}, None),
        ({"x-bana-slo-e2e-ms": "1500"}, {}, "1500"),
        ({"x-slo-e2e-ms": "1500"}, {"bana_slo_e2e_ms": 7}, "1500"),
        ({}, {"bana_slo_e2e_ms": 2500}, "2500"),
    ],
)
def test_a_limit_for_the_whole_answer_travels_as_well(
    door: Door, headers: dict[str, str], params: dict[str, object], told: str | None
) -> None:
    async def run() -> None:
        async with door(StubSettings(name="a")) as front:
            reply = await front.post(CHAT, {**HELLO, "custom_params": params}, headers)
            assert (reply.status, reply.headers.get("x-bana-slo-e2e-ms")) == (200, told)
            (seen,) = front.seen(CHAT)
            budget = _read_here(seen.body["custom_params"])
            assert budget.e2e_s == (None if told is None else float(told) / 1e3)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("headers", "params", "code"),
    [
        ({"x-llm-d-slo-ttft-ms": "0"}, {}, "slo_invalid"),
        ({"x-llm-d-slo-ttft-ms": "-5"}, {}, "slo_invalid"),
        ({"x-llm-d-slo-ttft-ms": "nan"}, {}, "slo_invalid"),
        ({"x-slo-tpot-ms": "soon"}, {}, "slo_invalid"),
        ({"x-slo-tpot-ms": ""}, {}, "slo_invalid"),
        ({"x-bana-slo-class": "platinum"}, {}, "slo_class_unknown"),
        ({}, {"bana_slo_ttft_ms": True}, "slo_invalid"),
        ({}, {"bana_slo_ttft_ms": [1]}, "slo_invalid"),
        ({}, {"bana_deadline_s": 1}, "slo_param_unknown"),
        ({}, {"bana_remaining_s": 1}, "slo_param_unknown"),
    ],
)
def test_words_that_cannot_be_used_are_a_400(
    door: Door, headers: dict[str, str], params: dict[str, object], code: str
) -> None:
    async def run() -> None:
        async with door(StubSettings(name="a")) as front:
            reply = await front.post(CHAT, {**HELLO, "custom_params": params}, headers)
            assert (reply.status, reply.code) == (400, code)
            assert reply.error["param"]
            assert not front.seen(CHAT)

    asyncio.run(run())


def test_what_is_out_of_range_is_clamped_and_told(door: Door) -> None:
    async def run() -> None:
        async with door(StubSettings(name="a")) as front:
            far = {"x-slo-ttft-ms": "1e300", "x-slo-tpot-ms": "inf"}
            reply = await front.post(CHAT, HELLO, far)
            assert _echo(reply) == ("standard", "600000", "60000")
            assert reply.headers["x-bana-slo-clamped"] == "ttft,tpot"
            words = b'{"bana_slo_ttft_ms": 1e400, "bana_slo_tpot_ms": 1234.5678}'
            reply = await front.post(CHAT, b'{"messages": [], "custom_params": %b}' % words)
            assert _echo(reply) == ("standard", "600000", "1234.5678")
            assert reply.headers["x-bana-slo-clamped"] == "ttft"

    asyncio.run(run())


def test_the_deadline_is_absolute_here_and_remaining_elsewhere(door: Door) -> None:
    async def run() -> None:
        before_s = time.monotonic()
        async with door(StubSettings(name="a")) as front:
            await front.post(CHAT, HELLO)
            params = front.seen(CHAT)[0].body["custom_params"]
            assert before_s < params["bana_arrival_s"] < time.monotonic()
            assert params["bana_deadline_s"] == pytest.approx(params["bana_arrival_s"] + 10)
            # The engine reads what the front door wrote.
            assert _read_here(params) == Budget("standard", params["bana_arrival_s"], 10.0, 0.25)
        async with door(StubSettings(name="a"), upstream={"local": False}) as front:
            await front.post(CHAT, HELLO)
            params = front.seen(CHAT)[0].body["custom_params"]
            assert 9 < params["bana_remaining_s"] <= 10
            assert not params.keys() & {"bana_deadline_s", "bana_arrival_s", "bana_boot_id"}
            assert _read_here(params).ttft_s == 10.0

    asyncio.run(run())


def test_a_batch_is_promised_as_one(door: Door) -> None:
    async def run() -> None:
        async with door(StubSettings(name="a")) as front:
            one = {"custom_params": {"bana_slo_ttft_ms": 500}, "max_new_tokens": 1}
            body = {"text": ["a", "b"], "sampling_params": [one, one]}
            reply = await front.post("/generate", body)
            assert _echo(reply) == ("standard", "500", "250")
            (seen,) = front.seen("/generate")
            inner = [p["custom_params"]["bana_ttft_s"] for p in seen.body["sampling_params"]]
            assert inner == [0.5, 0.5]
            differing = {**body, "sampling_params": [one, {"max_new_tokens": 1}]}
            conflict = await front.post("/generate", differing)
            assert (conflict.status, conflict.code) == (400, "slo_conflict")

    asyncio.run(run())


def test_endpoints_that_cannot_carry_a_promise_get_the_default(door: Door) -> None:
    async def run() -> None:
        async with door(StubSettings(name="a")) as front:
            reply = await front.post("/v1/messages", HELLO)
            assert _echo(reply)[0] == "standard"
            (seen,) = front.seen("/v1/messages")
            assert "custom_params" not in seen.body
            # Its rid travels as a header, which instances of bana honour.
            assert seen.headers["x-override-rid"] == reply.headers["x-bana-rid"]

    asyncio.run(run())


def test_a_bana_behind_bana_is_promised_by_headers(door: Door, door_on: Door) -> None:
    async def run() -> None:
        async with door(StubSettings(name="a")) as inner, door_on(inner.url) as outer:
            body = {**HELLO, "custom_params": {"bana_slo_ttft_ms": 4000}, "rid": "mine"}
            reply = await outer.post(CHAT, body)
            assert reply.status == 200
            assert _echo(reply) == ("standard", "4000", "250")
            (seen,) = inner.seen(CHAT)
            # The inner front door starts its own clock with what remained.
            assert 3.0 < seen.body["custom_params"]["bana_ttft_s"] <= 4.0
            loads = (await outer.get("/v1/loads")).json()["loads"]
            assert len(loads) == 1

    asyncio.run(run())
