"""One engine computes a prompt, and the other one waits for its pages instead."""

from __future__ import annotations

import pytest
from sglang.srt.managers.io_struct import AbortReq

from bana.radix_global.messages import WantOutcome
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
