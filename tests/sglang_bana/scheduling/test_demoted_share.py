"""What lost requests use up of their share: each portion that is computed for them, no more."""

from __future__ import annotations

from typing import Any

import pytest

from bana.slo.governor import FixedChunk, FixedChunkOptions
from bana.slo.order import ORDERS
from sglang_bana.engine.scheduling.calibration import RID_PREFIX

from .asks import ask, make_req
from .fake_engine import CLOCK, START_S, FakeEngine, build_engine, replace_policies

LOST_S = 0.001
Portions = list[tuple[int, int]]


def watch_portions(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> Portions:
    """The prompt tokens of each portion, and how many of them were a lost request's."""
    portions: Portions = []
    tracker = engine.conductor.learner.tracker
    note = tracker.observe_portion

    def observe(prompt_tokens: int, demoted_tokens: int) -> None:
        portions.append((prompt_tokens, demoted_tokens))
        note(prompt_tokens, demoted_tokens)

    monkeypatch.setattr(tracker, "observe_portion", observe)
    return portions


@pytest.mark.parametrize("is_overlapping", [False, True])
def test_a_lost_prompt_is_charged_chunk_by_chunk(
    is_overlapping: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = build_engine("budget", "stock", is_overlapping=is_overlapping)
    portions = watch_portions(engine, monkeypatch)
    engine.step(ask("lost", 40, due_s=LOST_S))
    assert portions == [(16, 16)]
    engine.run_dry()
    assert portions == [(16, 16), (16, 16), (8, 8)]


def test_who_is_on_time_is_not_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = build_engine("budget", "stock")
    portions = watch_portions(engine, monkeypatch)
    engine.step(ask("on time", 30))
    engine.run_dry()
    assert portions == [(16, 0), (14, 0)]


def test_of_a_shared_step_the_lost_portion_is_charged_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = build_engine("budget", "stock")
    portions = watch_portions(engine, monkeypatch)
    assert engine.step(ask("lost", 4, due_s=LOST_S), ask("on time", 7)) == ["lost", "on time"]
    assert portions == [(4, 4), (7, 0)]


def test_decodes_of_a_mixed_step_are_nobodys_portion(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = build_engine(is_mixing=True)
    fixed = FixedChunk(FixedChunkOptions(chunk_tokens=8, decodes=0))
    replace_policies(engine, order=ORDERS.create("budget"), governor=fixed)
    portions = watch_portions(engine, monkeypatch)
    engine.step(ask("lost too", 4, due_s=LOST_S, new_tokens=20))
    assert engine.step(ask("lost", 8, due_s=LOST_S)) == ["lost", "lost too"]
    assert portions == [(4, 4), (8, 8)]


def test_who_is_on_time_again_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = build_engine("budget", "stock")
    portions = watch_portions(engine, monkeypatch)
    tracker = engine.conductor.learner.tracker
    for _ in range(9):
        tracker.observe_chunk(wall_s=3.0, alone_s=1.0)
    engine.process_input_requests([ask("saved", 8, due_s=0.05)])
    engine.conductor.plan_pass(engine.running_batch)
    engine.conductor.apply_plan()
    assert engine.conductor.counts.demotions == 1
    tracker.observe_idle()
    assert engine.step() == ["saved"]
    assert portions == [(8, 0)]


def test_whoever_the_plan_does_not_name_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = build_engine("budget", "stock", head_rows=1)
    portions = watch_portions(engine, monkeypatch)
    engine.step(ask("lost", 4, due_s=LOST_S), ask("lost as well", 4, due_s=LOST_S))
    assert portions == [(4, 4), (4, 0)]


@pytest.mark.parametrize("rid", ["HEALTH_CHECK_1", RID_PREFIX + "1"])
def test_probes_and_calibration_are_not_counted(rid: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = build_engine("budget", "stock")
    portions = watch_portions(engine, monkeypatch)
    assert engine.step(make_req(rid, [1, 2, 3], 1, None)) == [rid]
    assert portions == []


def test_a_pass_that_sglang_decides_charges_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = build_engine("stock", "prefill_first")
    portions = watch_portions(engine, monkeypatch)
    engine.step(ask("late", 8, due_s=LOST_S))
    assert portions == [(8, 0)]


@pytest.mark.parametrize("share", [0.1, 0.3])
def test_beside_those_on_time_the_lost_get_no_more_than_their_share(share: float) -> None:
    options = {"demoted_share": share}
    engine = build_engine("budget", "stock", pages=200, rows=64, order_options=options)
    lost = [ask(f"lost {i}", 10, due_s=LOST_S, new_tokens=1) for i in range(20)]
    rest = [ask(f"on time {i}", 10, due_s=900.0, new_tokens=1) for i in range(20)]
    engine.step(*lost, *rest)
    while any(req.rid.startswith("on time") for req in engine.waiting_queue):
        engine.step()
    tokens = sum(engine.computed.values())
    of_lost = sum(n for rid, n in engine.computed.items() if rid.startswith("lost"))
    assert share * tokens - 20 <= of_lost <= share * tokens + 20
    assert CLOCK.now_s < START_S + 900.0
    engine.run_dry()
    assert sum(engine.computed.values()) == 400


def test_with_no_share_the_lost_wait_for_all_others() -> None:
    engine = build_engine("budget", "stock", order_options={"demoted_share": 0.0})
    asked: list[Any] = [ask("lost", 10, due_s=LOST_S)]
    asked += [ask(f"on time {i}", 10, new_tokens=1) for i in range(4)]
    ran = [engine.step(*asked), *(engine.step() for _ in range(3))]
    assert "lost" not in ran[0]
    assert ran[-1][-1] == "lost"
