"""One engine computes a prompt, and the other one waits for its pages instead."""

from __future__ import annotations

from typing import Any

import pytest
from sglang.srt.managers.io_struct import AbortReq

from bana.radix_global.messages import WantOutcome
from bana.radix_global.naive_store import NaiveStore
from sglang_bana.engine.linker.limits import LinkerLimits
from sglang_bana.engine.stay import stay_of

from .asks import ask
from .fake_engine import CLOCK, build_engine
from .store_stand import add_store


def test_the_prefill_side_says_what_it_computes_until_it_has_ended() -> None:
    engine = build_engine("edf", "stock")
    store = add_store(engine)
    engine.step(ask("p", 60, new_tokens=1, handoff="prefill"), ask("x", 12))
    assert [len(keys) for keys in store.store.announced.values()] == [14]
    engine.run_dry()
    # Nobody waits for the answer of a prefill.
    assert engine.conductor.outcomes.report()["standard"].answered == 1
    store.drain()
    assert store.store.announced == {}


def test_an_aborted_prefill_is_withdrawn() -> None:
    engine = build_engine("edf", "stock", rows=1)
    store = add_store(engine)
    engine.step(ask("x", 4, new_tokens=30))
    engine.step(ask("p", 60, handoff="prefill"))
    assert len(store.store.announced) == 1
    engine.step(AbortReq(rid="p"))
    store.drain()
    assert store.store.announced == {}


def test_the_decode_side_waits_and_is_overtaken() -> None:
    engine = build_engine("edf", "stock")
    store = add_store(engine)
    prompt = ask("d", 60, handoff="decode")
    engine.step(prompt)
    assert engine.queue() == ["d"]
    assert stay_of(prompt).is_elsewhere
    assert engine.step(ask("x", 12)) == ["x"]
    store.keep(prompt, pages=7)
    store.deliver("d", 7)
    engine.step()
    assert "d" in engine.queue()
    store.keep(prompt)
    store.deliver("d", 7)
    assert "d" in engine.step()
    assert not stay_of(prompt).is_elsewhere
    engine.run_dry()
    assert store.linker.counts.late_holds == 0


@pytest.mark.parametrize("is_told", [True, False], ids=["the store says so", "nobody says so"])
def test_the_decode_side_computes_what_does_not_come(is_told: bool) -> None:
    engine = build_engine("edf", "stock")
    store = add_store(engine)
    engine.step(ask("d", 60, handoff="decode"))
    assert engine.queue() == ["d"]
    if is_told:
        wanted = store.linker.wants.find("d")
        assert wanted is not None
        store.store.settle(wanted.want, WantOutcome.MISSING)
    else:
        CLOCK.now_s += 5.0
    assert engine.step() == ["d"]
    engine.run_dry()
    assert engine.computed["d"] == 60


@pytest.fixture
def graces(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """For how long each want lets others say that they compute its pages."""
    found: list[float] = []
    ask_for = NaiveStore.prefetch

    def prefetch(self: Any, keys: bytes, due_s: float, end_s: float, until_s: float) -> Any:
        found.append(until_s - CLOCK.now_s if until_s else 0.0)
        return ask_for(self, keys, due_s, end_s, until_s)

    monkeypatch.setattr(NaiveStore, "prefetch", prefetch)
    return found


def test_others_get_about_as_long_as_computing_here_takes(graces: list[float]) -> None:
    engine = build_engine("edf", "stock", pages=1024)
    limits = add_store(engine).linker.limits
    engine.step(ask("s", 60, handoff="decode"), ask("l", 2000, handoff="decode"))
    prices = engine.engine_prices
    assert prices is not None
    longer_s = limits.await_share * prices.estimate_prefill_s(2000, 0)
    assert limits.await_least_s < longer_s < limits.await_s
    assert graces == pytest.approx([limits.await_least_s, longer_s])


def test_one_that_has_begun_to_answer_waits_for_nobody(graces: list[float]) -> None:
    engine = build_engine("edf", "stock")
    store = add_store(engine)
    prompt = ask("d", 60, handoff="decode")
    # As SGLang queues again what it has retracted.
    prompt.output_ids.append(7)
    engine.step(prompt)
    assert graces == [0.0]
    assert not stay_of(prompt).is_elsewhere
    engine.step()
    assert len(store.restorer.holds) == 0
    assert engine.computed["d"] > 0


def test_a_little_more_of_what_the_device_has_is_computed_here(graces: list[float]) -> None:
    engine = build_engine("edf", "stock")
    store = add_store(engine)
    store.linker.limits = LinkerLimits(await_tokens=16)
    engine.step(ask("a", 60, shared_tokens=60))
    engine.run_dry()
    asks = [ask(f"d{n}", n, shared_tokens=60, handoff="decode") for n in (70, 90)]
    engine.step(*asks)
    assert [grace > 0 for grace in graces] == [False, False, True]
    # So is what is little as a whole, where nothing of it is at hand: it was given away.
    engine.step(ask("n", 12, handoff="decode"))
    assert graces[-1] > 0


def test_a_prompt_that_is_not_taken_in_is_nobodys_to_wait_for() -> None:
    engine = build_engine("edf", "stock", admission="reject_infeasible")
    store = add_store(engine)
    engine.step(ask("x", 60))
    told: list[int] = []
    store.store.announce = lambda keys: told.append(len(keys)) or 1  # type: ignore[method-assign]
    store.store.withdraw = lambda number: told.append(-number)  # type: ignore[method-assign]
    engine.step(ask("p", 60, due_s=1e-6, handoff="prefill"))
    assert [abort.rid for abort in engine.aborted] == ["p"]
    store.drain()
    assert told[0] > 0 > told[1]
