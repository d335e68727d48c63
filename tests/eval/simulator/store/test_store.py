"""A store beside the instance: what comes back from it, when, and what it changes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bana.eval.requests import Limits
from bana.eval.simulator.decision_file import DecisionFile
from bana.eval.simulator.log import Happening
from bana.eval.simulator.replay import replay_log
from bana.eval.simulator.store.spec import StoreSpec, TierSpec, Weather, Writes
from bana.slo.decisions import LogHeader, PolicyChoice
from bana.slo.errors import ConfigError, PlanError
from bana.slo.restore import RESTORES, RestorePlan, RestoreReason

Make = Callable[..., Any]

# A page of 4 tokens is 400 bytes; 10 ms a step and 1 ms a token, as everywhere here.
STORE = StoreSpec(
    tiers={"disk": TierSpec(bytes_per_s=40_000.0, latency_ms=5.0)},
    token_bytes=100,
    arena_pages=25,
    lot_pages=5,
    answer_ms=2.0,
    write_delay_ms=50.0,
)


def change(**changed: object) -> StoreSpec:
    return msgspec.structs.replace(STORE, **changed)


@pytest.fixture
def small(server: Any) -> Any:
    """KV for one request of 100 tokens and little more, so that the next evicts the last."""
    return server.but(kv_tokens=128, store=STORE, restore="always")


@pytest.fixture
def asks(ask: Make) -> list[Any]:
    """The first and the last share 80 tokens, which the one between them evicts."""
    return [
        ask(due_s=0.0, prompt=100, shared=80),
        ask(due_s=1.0, prompt=100),
        ask(due_s=2.0, prompt=100, shared=80),
    ]


def ttft_s(served: Any, index: int) -> float:
    seen = served.observed[index]
    assert seen.first_s is not None
    return float(seen.first_s - seen.due_s)


def test_what_the_device_lost_is_read_back_lot_by_lot(small: Any, asks: list[Any]) -> None:
    served = small.serve(asks)
    # An answer, four lots of 5 pages (5 ms and 50 ms each), a step of 20 tokens.
    assert ttft_s(served, 2) == pytest.approx(0.002 + 4 * 0.055 + 0.010 + 0.020)
    assert served.run.sources == {"device": 0, "arena": 0, "disk": 80, "computed": 220}
    assert served.observed[2].cached_tokens == 80
    assert ttft_s(served, 0) == pytest.approx(0.002 + 0.110)


def test_a_jitter_changes_times_and_nothing_else(small: Any, asks: list[Any]) -> None:
    disk = msgspec.structs.replace(STORE.tiers["disk"], jitter=0.5)
    served = small.but(store=change(tiers={"disk": disk})).serve(asks)
    assert served.run.sources["disk"] == 80
    assert ttft_s(served, 2) != pytest.approx(0.252)
    assert small.but(store=change(tiers={"disk": disk}), seed=1).serve(asks) != served


def test_the_arena_gives_at_once_what_it_holds(small: Any, asks: list[Any]) -> None:
    served = small.but(store=change(arena_pages=None, copy_page_ms=5.0)).serve(asks)
    # Copying twenty pages takes longer than computing twenty tokens.
    assert ttft_s(served, 2) == pytest.approx(0.002 + 0.100)
    assert served.run.sources["arena"] == 80


def test_two_tiers_read_side_by_side(small: Any, asks: list[Any]) -> None:
    tiers = {"one": STORE.tiers["disk"], "two": STORE.tiers["disk"]}
    served = small.but(store=change(tiers=tiers)).serve(asks)
    assert ttft_s(served, 2) == pytest.approx(0.002 + 2 * 0.055 + 0.010 + 0.020)
    assert (served.run.sources["one"], served.run.sources["two"]) == (40, 40)


def test_never_is_the_instance_without_a_store(server: Any, asks: list[Any]) -> None:
    alone = server.but(kv_tokens=128).serve(asks)
    never = server.but(kv_tokens=128, store=STORE, restore="never").serve(asks)
    assert never.run.event_hash == alone.run.event_hash
    assert never.run.sources["computed"] == 300
    assert alone.run.sources == {}


def test_the_planner_computes_where_reading_takes_longer(small: Any, asks: list[Any]) -> None:
    # 40 kB/s give 80 tokens in 220 ms, computing them takes 80 ms of the engine.
    planned = small.but(restore="planned", store=change(weather=Weather.TRUE)).serve(asks)
    assert planned.run.sources["disk"] == 0
    assert ttft_s(planned, 2) == pytest.approx(0.002 + 0.110)
    quick = change(weather=Weather.TRUE, speed=10.0)
    assert small.but(restore="planned", store=quick).serve(asks).run.sources["disk"] == 80


def test_computing_and_reading_meet_where_both_take_as_long(small: Any, asks: list[Any]) -> None:
    # Reading 80 tokens takes 100 ms, computing them 80.
    disk = TierSpec(bytes_per_s=80_000.0, latency_ms=0.0)
    spec = change(weather=Weather.TRUE, tiers={"disk": disk}, lot_pages=1)
    ready = small.but(restore="planned", store=spec)
    met = ready.but(options={"restore": {"meet": True}}).serve(asks)
    both = ready.serve(asks), small.but(store=spec).serve(asks)
    assert ttft_s(met, 2) < 0.9 * min(ttft_s(served, 2) for served in both)
    read = met.run.sources["disk"]
    assert 20 <= read <= 60
    assert met.run.sources["computed"] == 300 - read
    assert met.observed[2].cached_tokens == read
    held = [e.subject for e in met.log.kept if e.kind is Happening.HELD]
    assert held == [0, 1, 2, 2]


def test_nobody_parts_from_its_pages_while_others_wait(small: Any, asks: list[Any]) -> None:
    crowd = [dataclasses.replace(asks[1], due_s=2.0) for _ in range(3)]
    ready = small.but(restore="planned", store=change(weather=Weather.TRUE, speed=2.0))
    met = ready.but(options={"restore": {"meet": True}}).serve([*crowd, *asks[:2], asks[2]])
    held = [e.subject for e in met.log.kept if e.kind is Happening.HELD]
    assert len(held) == len(set(held))


def test_a_held_request_is_overtaken(small: Any, asks: list[Any], ask: Make) -> None:
    served = small.serve([*asks, ask(due_s=2.05, prompt=10)])
    held = [e.subject for e in served.log.kept if e.kind is Happening.HELD]
    resumed = [e.subject for e in served.log.kept if e.kind is Happening.RESUMED]
    assert held == [0, 1, 2, 3]
    assert resumed == [0, 1, 3, 2]
    assert served.observed[3].end_s < served.observed[2].end_s


def test_who_asks_misses_the_step_that_begins_meanwhile(server: Any, ask: Make) -> None:
    asks = [ask(due_s=0.0, prompt=20, output=200), ask(due_s=1.0, prompt=20)]
    ready = server.but(store=STORE, restore="arrived")
    late = ttft_s(ready.serve(asks), 1)
    patient = ready.but(store=change(patience_ms=2.0))
    early = ttft_s(patient.serve(asks), 1)
    # A decode step takes 12 ms, of which its answer was waited for 2 ms.
    assert late - early == pytest.approx(0.012 - 0.002)


@pytest.mark.parametrize("writes", Writes)
def test_what_is_not_written_yet_is_computed(
    small: Any, asks: list[Any], writes: Writes, ask: Make
) -> None:
    slow = change(writes=writes, write_delay_ms=5_000.0)
    served = small.but(store=slow).serve(asks)
    # Shared with reads, the 25 pages of the first are through long before the third comes.
    assert (served.run.sources["disk"] == 80) == (writes is Writes.SHARED)


def test_decisions_are_logged_and_decided_again(
    tmp_path: Path, small: Any, asks: list[Any]
) -> None:
    path = tmp_path / "log.jsonl"
    header = LogHeader(
        0, PolicyChoice("fcfs"), PolicyChoice("prefill_first"), None, PolicyChoice("planned")
    )
    with DecisionFile(path, header) as file:
        small.but(restore="planned").serve(asks, file)
    text = path.read_text()
    assert text.count('"kind":"restore"') >= 6
    found = replay_log(path)
    assert (found.differing, found.decisions) == (0, len(text.splitlines()) - 1)


class _Greedy:
    asks = True

    def decide_restore(self, view: Any, now_s: float, rng: object) -> RestorePlan:
        return RestorePlan(view.arrived_pages + 1_000, now_s, RestoreReason.FIXED)


def test_an_answer_outside_the_law_ends_the_run(
    monkeypatch: pytest.MonkeyPatch, small: Any, asks: list[Any]
) -> None:
    monkeypatch.setattr(RESTORES, "create", lambda name, options=None: _Greedy())
    with pytest.raises(PlanError, match="waits for 1000 pages"):
        small.serve(asks)


def test_a_restore_policy_needs_a_store(server: Any, ask: Make) -> None:
    with pytest.raises(ConfigError, match="needs a store"):
        server.but(restore="always").serve([ask(limits=Limits())])
