"""`/metrics` parses, its labels are bounded, and its counters tell what happened."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from bana.eval.stub import Fault, StubSettings
from sglang_bana.router.metrics import MAX_REASONS, RouterMetrics

CHAT = "/v1/chat/completions"
HELLO = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
STREAM = {**HELLO, "stream": True}
Door = Callable[..., AbstractAsyncContextManager[Any]]
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


async def _scrape(front: Any) -> Samples:
    text = (await front.get("/metrics")).body.decode()
    families = list(text_string_to_metric_families(text))
    assert all(family.name.startswith("bana_") for family in families)
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def _value(samples: Samples, name: str, **labels: str) -> float:
    return samples.get((name, frozenset(labels.items())), 0.0)


def test_counters_follow_the_requests(door: Door) -> None:
    async def run() -> None:
        async with door(StubSettings(name="a"), routing={"policy": "round_robin"}) as front:
            await front.post(CHAT, STREAM)
            await front.post(CHAT, STREAM, {"x-bana-slo-class": "batch"})
            await front.post(CHAT, HELLO, {"x-bana-slo-class": "none such"})
            await front.post("/nowhere", {})
            samples = await _scrape(front)
            chat = {"endpoint": CHAT, "slo_class": "standard"}
            assert _value(samples, "bana_requests_total", **chat, outcome="ok") == 1
            other = {"endpoint": CHAT, "slo_class": ""}
            assert _value(samples, "bana_requests_total", **other, outcome="slo_class_unknown") == 1
            lost = {"endpoint": "unknown", "slo_class": "", "outcome": "path_unknown"}
            assert _value(samples, "bana_requests_total", **lost) == 1
            assert _value(samples, "bana_dispatch_total", instance="a", reason="turn") == 2
            for name in ("standard", "batch"):
                met = {"slo_class": name, "outcome": "ttft_met"}
                assert _value(samples, "bana_slo_outcome_total", **met) == 1
                count = "bana_request_first_byte_seconds_count"
                assert _value(samples, count, slo_class=name) == 1
            assert _value(samples, "bana_in_flight") == 0
            assert _value(samples, "bana_instance_state", instance="a", state="up") == 1
            assert _value(samples, "bana_instance_state", instance="a", state="down") == 0
            belief = {"instance": "a", "quantity": "in_flight"}
            assert ("bana_router_belief", frozenset(belief.items())) in samples

    asyncio.run(run())


def test_missed_and_failed_promises_are_counted_apart(door: Door) -> None:
    async def run() -> None:
        async with door(StubSettings(name="a", first_delay_s=0.05)) as front:
            await front.post(CHAT, STREAM, {"x-slo-ttft-ms": "1"})
            await front.post(CHAT, HELLO)
            server = front.stubs[0].server
            server.settings = StubSettings(
                name="a", secret=server.settings.secret, fault=Fault.CLOSE_MIDWAY
            )
            await front.post(CHAT, STREAM)
            samples = await _scrape(front)
            # One word a request: a stream that began in time and broke is a failure only.
            for outcome in ("ttft_missed", "failed", "unobserved"):
                labels = {"slo_class": "standard", "outcome": outcome}
                assert _value(samples, "bana_slo_outcome_total", **labels) == 1
            met = frozenset({"slo_class": "standard", "outcome": "ttft_met"}.items())
            assert ("bana_slo_outcome_total", met) not in samples

    asyncio.run(run())


def test_reasons_of_a_talkative_policy_are_capped() -> None:
    metrics = RouterMetrics()
    reasons = {metrics.cap_reason(f"because-{n}") for n in range(1000)}
    assert len(reasons) == MAX_REASONS + 1
    assert metrics.cap_reason("because-0") == "because-0"
    assert metrics.cap_reason("because-999") == "other"


def test_requests_turned_away_are_promises_that_were_not_kept(door: Door) -> None:
    async def run() -> None:
        hanging = StubSettings(name="a", fault=Fault.HANG)
        async with door(hanging, limits={"max_requests": 1}) as front:
            full = asyncio.create_task(front.post(CHAT, HELLO))
            await front.wait_until(lambda: front.seen(CHAT))
            for headers in ({}, {"x-bana-slo-class": "batch"}, {"x-bana-slo-class": "none such"}):
                assert (await front.post(CHAT, STREAM, headers)).status == 429
            # No prompt, no promise.
            assert (await front.post("/v1/tokenize", {})).status == 429
            full.cancel()
            front.running.door.local.is_draining = True
            assert (await front.post(CHAT, STREAM)).code == "draining"
            samples = await _scrape(front)
            rejected = dict.fromkeys(("standard", "batch"), 0.0)
            for name in rejected:
                labels = {"slo_class": name, "outcome": "rejected"}
                rejected[name] = _value(samples, "bana_slo_outcome_total", **labels)
            # Two under the default, whose own class was unusable or not named, and one draining.
            assert rejected == {"standard": 3, "batch": 1}
            turned = {"endpoint": CHAT, "slo_class": "batch", "outcome": "overloaded"}
            assert _value(samples, "bana_requests_total", **turned) == 1

    asyncio.run(run())
