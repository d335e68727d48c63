"""Holds are looked at when something has happened, and not otherwise."""

from __future__ import annotations

import math
import threading
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from bana.radix_global.link import Want
from bana.radix_global.messages import TierWeather, WantOutcome
from bana.slo.fetching import ComputeView
from bana.slo.restore import RESTORES, RestorePlan, RestorePolicy, RestoreReason, RestoreView
from bana.slo.steps import EnginePrices, StepModel
from sglang_bana.engine.linker.counts import LinkerCounts
from sglang_bana.engine.linker.holding import Holds, merge_back
from sglang_bana.engine.linker.restore_desk import (
    PageSize,
    RestoreDesk,
    view_tiers,
)
from sglang_bana.engine.linker.restoring import Restorer
from sglang_bana.engine.linker.wake import WakeBell
from sglang_bana.engine.linker.wanted import Wanted

NOW_S = 100.0
WEATHER = TierWeather(1, "disk", 1e6, 0.01, 4, 50_000)


class Desk:
    """Holds of requests that take a second to compute, and a count of how often that was asked."""

    def __init__(self, policy: RestorePolicy | None = None) -> None:
        self.asked = 0
        self.requests: list[SimpleNamespace] = []
        self.counts = LinkerCounts()
        self.desk = RestoreDesk(
            policy or RESTORES.create("always", {"most_s": 1.0}),
            0,
            PageSize(16, 4096),
            self.find_compute,
            lambda: (WEATHER,),
            self.counts,
        )
        self.holds = Holds(self.desk, self.counts)

    def find_compute(self) -> ComputeView:
        self.asked += 1
        return ComputeView(EnginePrices(StepModel(1.0, 0.0, 0.0, 0.0, 0.0, 0.0), 512, 1.0), 3)

    def hold(self, rid: str, asked_s: float = NOW_S, known: bytes | None = b"\x02" * 4) -> Want:
        want = Want(1, 4)
        if known is not None:
            want.note_known(known, (WEATHER,))
        wanted = Wanted(["h"] * 4, 0, b"k" * 64, want, asked_s, asked_s + 1000.0)
        self.requests.append(SimpleNamespace(rid=rid, seqlen=70))
        self.holds.add(self.requests[-1], wanted, asked_s)
        return want


def test_the_queue_is_split_and_keeps_its_order() -> None:
    desk = Desk()
    for rid in "bd":
        desk.hold(rid)
    held = {req.rid: req for req in desk.requests}
    queue = [held.get(rid, SimpleNamespace(rid=rid)) for rid in "abcde"]
    passed, kept = desk.holds.split(queue)
    assert [[req.rid for req in part] for part in (passed, kept)] == [["a", "c", "e"], ["b", "d"]]
    assert merge_back(queue, passed, kept) == queue


def test_nothing_is_decided_while_nothing_happens() -> None:
    desk = Desk()
    for index in range(100):
        desk.hold(f"{index}")
    asked = desk.asked
    for step in range(50):
        assert desk.holds.find_over(NOW_S + step / 100) == ()
    assert desk.asked == asked


def test_news_end_a_hold_at_once() -> None:
    desk = Desk()
    first, _ = desk.hold("a"), desk.hold("b")
    first.note_settled(WantOutcome.MISSING)
    assert desk.holds.find_over(NOW_S) == ()
    desk.holds.refresh(NOW_S)
    assert desk.holds.find_over(NOW_S) == ("a",)
    assert desk.counts.late_holds == 0


def test_each_hold_ends_in_its_time() -> None:
    desk = Desk()
    desk.hold("a", NOW_S)
    desk.hold("b", NOW_S + 0.5)
    assert desk.holds.next_end_s == NOW_S + 1.0
    assert desk.holds.find_over(NOW_S + 1.0) == ("a",)
    assert [req.rid for req in desk.holds.end(("a", "unknown"))] == ["a"]
    assert desk.holds.find_over(NOW_S + 1.4) == ()
    assert desk.holds.find_over(NOW_S + 1.5) == ("b",)
    assert desk.counts.late_holds == 2
    desk.holds.end_all()
    assert len(desk.holds) == 0
    assert desk.holds.next_end_s == math.inf


def test_only_whom_news_concern_is_thought_over() -> None:
    desk = Desk()
    wants = [desk.hold(f"{index}") for index in range(10)]
    unanswered = desk.hold("new", known=None)
    asked = desk.asked
    desk.holds.refresh(NOW_S)
    assert desk.asked == asked
    wants[3].note_settled(WantOutcome.COMPLETE)
    unanswered.note_known(b"")
    desk.holds.refresh(NOW_S)
    assert desk.asked == asked + 2
    assert desk.holds.find_over(NOW_S) == ("3", "new")
    assert desk.desk.reasons == {RestoreReason.COMPLETE: 2}


class Broken:
    """A policy that cannot decide."""

    asks = True

    def decide_restore(self, view: RestoreView, now_s: float, rng: Random) -> RestorePlan:
        raise RuntimeError("no")


def test_a_policy_that_fails_holds_nobody(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk(Broken())
    desk.hold("a")
    desk.hold("b")
    assert desk.holds.find_over(NOW_S) == ("a", "b")
    assert desk.counts.faults == 4
    assert caplog.text.count("the restore policy failed") == 1


def test_what_was_to_be_read_before_is_less_every_moment() -> None:
    want = Want(1, 4)
    want.note_known(b"\x02" * 4, (WEATHER,))
    wanted = Wanted(["h"] * 4, 0, b"k" * 64, want, NOW_S, NOW_S)
    ahead = [view_tiers((WEATHER,), wanted, NOW_S + t)[0].ahead_bytes for t in (0, 0.02, 9)]
    assert ahead == pytest.approx([50_000, 30_000, 0])
    assert view_tiers((), wanted, NOW_S) == ()


def test_who_has_just_asked_is_given_a_moment() -> None:
    desk = Desk()
    assert desk.holds.answer_wait_s(NOW_S) == 0.0
    want = desk.hold("a", known=None)
    assert desk.holds.answer_wait_s(NOW_S) == pytest.approx(0.003)
    assert desk.holds.answer_wait_s(NOW_S + 0.002) == pytest.approx(0.001)
    # Not again in later passes, and not once it is known.
    assert desk.holds.answer_wait_s(NOW_S + 0.004) == 0.0
    want.note_known(b"\2")
    assert desk.holds.answer_wait_s(NOW_S) == 0.0


class Steps:
    """A clock, and a bell that has been rung for something else before an answer comes."""

    def __init__(self, restorer_rings: int) -> None:
        self.rings, self.waits, self.at_s = restorer_rings, 0, NOW_S

    def now_s(self) -> float:
        return self.at_s

    def wait(self, timeout_s: float) -> None:
        self.waits += 1
        self.at_s += 0.0005 if self.rings else timeout_s

    def silence(self) -> bool:
        self.rings -= 1
        return self.rings >= 0


@pytest.mark.parametrize(("rings", "waits"), [(0, 1), (1, 1), (3, 3)])
def test_a_moment_does_not_end_for_what_others_are_told(rings: int, waits: int) -> None:
    desk, steps = Desk(), Steps(rings)
    desk.hold("a", known=None)
    linker: Any = SimpleNamespace(bell=steps, clock=steps, counts=desk.counts)
    restorer = Restorer(linker, None, desk.desk)
    restorer.holds = desk.holds
    assert restorer.find_over() == ()
    # One look before it waits: what was rung by then is no answer to who has just asked.
    assert steps.waits == waits


def test_a_moment_ends_when_something_comes() -> None:
    bell = WakeBell()
    bell.wait(0.001)
    assert not bell.silence()
    threading.Timer(0.01, bell.ring).start()
    bell.wait(60.0)
    assert bell.silence()
