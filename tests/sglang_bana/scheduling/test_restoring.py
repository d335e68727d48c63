"""Requests are passed over while their pages come, and computed where those do not come."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.managers.io_struct import (
    AbortReq,
    CheckWeightsReqInput,
    LoadLoRAAdapterReqInput,
    UpdateWeightFromDiskReqInput,
)

from sglang_bana.engine.linker.holding import merge_back
from sglang_bana.engine.linker.streamer import StoreStreamer
from sglang_bana.engine.stay import stay_of

from .asks import ask
from .books import check_books
from .fake_engine import CLOCK, FakeEngine, build_engine
from .store_stand import EngineStore, add_store

BOTH = pytest.mark.parametrize("order", ["stock", "edf"])


def build(order: str = "edf", **more: Any) -> tuple[FakeEngine, EngineStore]:
    engine = build_engine(order, "stock", **more)
    return engine, add_store(engine)


@BOTH
def test_who_finds_nothing_in_the_store_does_not_wait(order: str) -> None:
    engine, store = build(order)
    assert engine.step(ask("a", 12)) == ["a"]
    assert store.linker.counts.missed_pages == 2
    assert store.linker.counts.late_holds == 0
    assert len(store.linker.wants) == 0


@BOTH
def test_others_overtake_who_waits_for_pages(order: str) -> None:
    engine, store = build(order)
    first, second = ask("a", 60), ask("b", 12)
    store.keep(first)
    assert engine.step(first, second) == ["b"]
    assert engine.queue() == ["a"]
    store.deliver("a", 10)
    assert "a" not in engine.step()
    store.deliver("a", 4)
    assert "a" in engine.step()
    engine.run_dry()
    assert store.store.wants == {}
    assert store.linker.counts.late_holds == 0


@BOTH
def test_a_hold_that_pays_no_more_ends(order: str) -> None:
    engine, store = build(order)
    req = ask("a", 12)
    store.keep(req)
    assert engine.step(req) == []
    CLOCK.now_s += 5.0
    assert engine.step() == ["a"]
    assert store.linker.counts.late_holds == 1
    engine.run_dry()
    assert store.store.wants == {}


def test_a_deadline_ends_a_hold_before_it_is_too_late_to_compute() -> None:
    engine, store = build(chunk_tokens=64)
    req = ask("a", 60, due_s=0.12)
    store.keep(req)
    engine.step(req)
    assert engine.queue() == ["a"]
    # A step of 60 tokens takes 70 ms here, and a quarter more is kept free.
    CLOCK.now_s += 0.05
    assert engine.step() == ["a"]


@BOTH
def test_who_is_released_takes_the_place_that_he_had(order: str) -> None:
    engine, store = build(order, rows=1)
    running = ask("r", 4, new_tokens=30)
    engine.step(running)
    waiting = [ask(rid, 12, due_s=50.0) for rid in "abcd"]
    for req in (waiting[0], waiting[2]):
        store.keep(req)
    engine.step(*waiting)
    assert engine.queue() == ["a", "b", "c", "d"]
    for rid in ("a", "c"):
        store.deliver(rid, 2)
    engine.step()
    assert engine.queue() == ["a", "b", "c", "d"]
    engine.run_dry()
    assert engine.computed == {"r": 4, "a": 12, "b": 12, "c": 12, "d": 12}


def test_a_queue_in_another_order_keeps_it() -> None:
    a, b, c, d, e, f, new = (object() for _ in range(7))
    assert merge_back([a, b, c, d, e, f], [f, d, b], [a, c, e]) == [a, c, e, f, d, b]
    assert merge_back([a, b, c], [], [a, b, c]) == [a, b, c]
    assert merge_back([a, b, c], [a, c], [b]) == [a, b, c]
    assert merge_back([a, b], [b, new], [a]) == [a, b, new]
    assert merge_back([a, b], [a, new], [b]) == [a, b, new]


@BOTH
def test_an_abort_ends_hold_and_want(order: str) -> None:
    engine, store = build(order)
    req = ask("a", 12)
    store.keep(req)
    engine.step(req)
    engine.step(AbortReq(rid="a"))
    assert engine.queue() == []
    assert len(engine.aborted) == 1
    assert store.store.wants == {}
    assert len(store.restorer.holds) == 0


def test_a_request_that_is_refused_asks_for_nothing() -> None:
    engine, store = build(admission="reject_infeasible")
    engine.step(ask("a", 60, due_s=100.0))
    engine.step(ask("b", 60, due_s=1e-6))
    assert [abort.rid for abort in engine.aborted] == ["b"]
    assert store.linker.wants.find("b") is None


def test_a_lost_store_holds_nobody() -> None:
    engine, store = build()
    req = ask("a", 12)
    store.keep(req)
    engine.step(req)
    store.store.lose()
    assert engine.step() == ["a"]
    assert engine.step(ask("b", 12)) == ["b"]


def test_a_fault_of_ours_holds_nobody_and_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, store = build()
    req = ask("a", 12)
    store.keep(req)
    engine.step(req)

    def fail(*_: Any) -> Any:
        raise RuntimeError("no idea")

    monkeypatch.setattr(store.restorer.holds, "find_over", fail)
    assert engine.step() == ["a"]
    monkeypatch.setattr(store.linker.wants, "ask", fail)
    assert engine.step(ask("b", 12)) != []
    engine.run_dry()
    assert engine.computed == {"a": 12, "b": 12}
    assert store.linker.counts.faults == 2


class Sleeper:
    """SGLang's idle sleeper, which notes how long it was told to sleep."""

    def __init__(self) -> None:
        self.slept_ms: list[int] = []
        self.poller = SimpleNamespace(poll=self.slept_ms.append)


def test_an_engine_whose_requests_all_wait_sleeps_until_the_first_hold_ends() -> None:
    engine, store = build()
    engine.idle_sleeper = sleeper = Sleeper()
    engine.step()
    assert sleeper.slept_ms == []
    req = ask("a", 40)
    store.keep(req)
    engine.step(req)
    # So quick a tier would have given the pages by then: that is thought over, ever less often.
    assert sleeper.slept_ms == [2]
    for _ in range(12):
        CLOCK.now_s += sleeper.slept_ms[-1] / 1000
        engine.step()
    assert sleeper.slept_ms[-1] > 2 * sleeper.slept_ms[0]
    sleeper.slept_ms.clear()
    store.deliver("a", 20)
    assert engine.step() == ["a"]
    assert sleeper.slept_ms == []


def test_an_engine_does_not_sleep_while_others_wait_for_room() -> None:
    engine, store = build(rows=1)
    engine.idle_sleeper = sleeper = Sleeper()
    first, second = ask("a", 12), ask("b", 12)
    store.keep(first)
    engine.refusals = iter([True] * 3)
    engine.step(first, second)
    assert engine.queue() == ["a", "b"]
    assert sleeper.slept_ms == []


SETTINGS = pytest.mark.parametrize(
    "settings",
    [
        {"order": order, "is_overlapping": is_overlapping, "is_mixing": is_mixing}
        for order in ("stock", "edf")
        for is_overlapping in (False, True)
        for is_mixing in (False, True)
    ],
    ids=str,
)


def test_who_is_held_keeps_his_seat_however_many_come_meanwhile() -> None:
    engine, store = build()
    held = ask("held", 60)
    store.keep(held)
    engine.step(held)
    # As in a pass: the queue does not show who is held, and others are seated.
    engine.waiting_queue, engine.held_out = [], [held]
    seats = set()
    for index in range(600):
        other = ask(f"{index}", 4)
        engine.conductor.welcome(other)
        seats.add(other.bana.slot)
    assert held.bana.slot not in seats
    assert engine.conductor.room.find([held]).tolist() == [held.bana.slot]


@SETTINGS
def test_failed_loads_are_computed_and_nobody_else_notices(settings: dict[str, Any]) -> None:
    engine, _ = build(**settings, chunk_tokens=64)
    engine.step(ask("r", 6, new_tokens=12))
    reqs = [ask(rid, tokens) for rid, tokens in (("a", 12), ("b", 9), ("c", 20), ("d", 5))]
    engine.failing = {"a", "c"}
    engine.step(*reqs)
    engine.run_dry()
    assert engine.failing == set()
    assert all(len(req.output_ids) == 4 for req in reqs)
    assert engine.computed == {"r": 6, "a": 24, "b": 9, "c": 40, "d": 5}
    assert engine.tree_cache.locks == []
    assert engine.aborted == []
    assert engine.restorer is not None
    assert engine.restorer.linker.counts.recomputed == 2


@SETTINGS
def test_a_failed_load_of_a_long_prompt_is_computed(settings: dict[str, Any]) -> None:
    engine, _ = build(**settings, chunk_tokens=16)
    req = ask("a", 50)
    engine.failing = {"a"}
    engine.step(req, ask("b", 5))
    for _ in range(4):
        if engine.conductor is not None:
            check_books(engine)
        engine.step()
    engine.run_dry()
    assert len(req.output_ids) == 4
    assert req.retraction_count == 0
    assert not req.is_retracted
    assert not req.retracted_stain
    assert engine.tree_cache.locks == []


def test_who_is_computed_again_goes_first_and_past_the_limit_of_the_queue() -> None:
    engine, _ = build("stock", rows=1, is_overlapping=True)
    engine.max_queued_requests = 2
    engine.failing = {"a"}
    engine.step(ask("a", 12))
    engine.step(ask("b", 12), ask("c", 12))
    assert engine.queue() == ["a", "b", "c"]
    engine.run_dry()
    assert engine.aborted == []
    assert engine.computed == {"a": 24, "b": 12, "c": 12}


@pytest.mark.parametrize("is_overlapping", [False, True])
def test_an_abort_reaches_who_is_between_launch_and_result(is_overlapping: bool) -> None:
    engine, _ = build("stock", is_overlapping=is_overlapping)
    req = ask("a", 12, new_tokens=30)
    engine.failing = {"a"}
    engine.step(req)
    engine.step(AbortReq(rid="a"))
    engine.run_dry()
    assert len(req.output_ids) < 3
    assert engine.tree_cache.locks == []


def update() -> UpdateWeightFromDiskReqInput:
    return UpdateWeightFromDiskReqInput(model_path="other")


def adapter() -> LoadLoRAAdapterReqInput:
    return LoadLoRAAdapterReqInput(lora_name="l", lora_path="p")


@pytest.mark.parametrize(
    ("change", "counts"),
    [
        (update(), True),
        (CheckWeightsReqInput(action="reset_tensors"), True),
        (CheckWeightsReqInput(action="checksum"), False),
        (adapter(), True),
    ],
)
def test_other_weights_have_other_keys(
    change: Any, counts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, store = build("stock")
    req = ask("a", 12)
    store.keep(req)
    engine.step(req)
    passed: list[Any] = []
    monkeypatch.setattr(engine, "_add_request_to_queue", passed.append)
    digest = store.linker.digest
    engine.process_input_requests([change])
    assert passed == [change]
    assert (store.linker.digest != digest) is counts
    assert store.linker.counts.epochs == counts
    assert len(store.restorer.holds) == (not counts)


@pytest.mark.parametrize(
    ("change", "rests"),
    [(update(), True), (LoadLoRAAdapterReqInput(lora_name="l", lora_path="p"), False)],
)
def test_what_the_tree_holds_of_other_weights_is_not_saved(
    change: Any, rests: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, store = build("stock")
    monkeypatch.setattr(FakeEngine, "_add_request_to_queue", lambda *_: None)
    engine.process_input_requests([change])
    assert not store.linker.is_resting
    monkeypatch.undo()
    engine.step(ask("a", 12))
    engine.run_dry()
    monkeypatch.setattr(FakeEngine, "_add_request_to_queue", lambda *_: None)
    engine.process_input_requests([change])
    assert store.linker.is_resting is rests


def test_weights_that_change_under_a_running_request_leave_nothing_to_save(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, store = build("stock")
    engine.step(ask("a", 3, new_tokens=30))
    assert engine.tree_cache.total_size() == (0, 0)
    monkeypatch.setattr(engine, "_add_request_to_queue", lambda _: None)
    engine.process_input_requests([update()])
    assert store.linker.is_resting


def test_every_prompt_token_has_one_source() -> None:
    engine, store = build("stock")
    engine.step(ask("a", 12))
    engine.run_dry()
    assert store.restorer.sources.report() == {"device": 0, "computed": 12, "arena": 0}


def test_a_client_sees_the_places_that_its_prompt_came_from() -> None:
    streamer = StoreStreamer.__new__(StoreStreamer)
    object.__setattr__(streamer, "enable_hicache_storage", lambda: False)
    req = ask("a", 40)
    req.cached_tokens_device, req.cached_tokens_host, req.cached_tokens_storage = 8, 4, 12
    assert streamer.get_cached_tokens_details(req) == {"device": 8, "host": 4, "storage": 12}
    stay_of(req).restored = (4, 8, 0, 4, 0, 0, 0, 0)
    assert streamer.get_cached_tokens_details(req) == {
        "device": 8,
        "host": 4,
        "storage": 12,
        "tier_1": 8,
        "tier_3": 4,
        "storage_backend": "bana",
    }
