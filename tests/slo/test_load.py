"""The ledger agrees with a plain recount, and a burst never vanishes between two reports."""

from __future__ import annotations

import dataclasses

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from bana.slo.load import InstanceLoad, LoadLedger
from bana.slo.wire import LoadReport

SETTLE_S = 0.25
NAMES = ("a", "b")


def _report(
    instance: str,
    sequence: int,
    last_pass_s: float,
    *,
    epoch: int = 1,
    waiting: int = 0,
    tokens: int = 0,
    running: int = 0,
) -> LoadReport:
    return LoadReport(
        instance=instance,
        epoch=epoch,
        sequence=sequence,
        time_s=last_pass_s,
        last_pass_s=last_pass_s,
        running_requests=running,
        waiting_requests=waiting,
        waiting_uncached_tokens=tokens,
        prefilling_tokens=0,
        used_tokens=0,
        capacity_tokens=0,
        prefill_tokens_total=0,
        decode_tokens_total=0,
    )


@dataclasses.dataclass
class _Known:
    instance: str
    tokens: int
    at_s: float
    is_answered: bool = False


class LedgerAgainstRecount(RuleBasedStateMachine):
    """Every belief is recounted from all dispatches, which the ledger must not need."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = LoadLedger(SETTLE_S)
        self.known: dict[str, _Known] = {}
        self.reports: dict[str, LoadReport] = {}
        self.now_s = 0.0
        self.sequence = 0

    @rule(rid=st.sampled_from("pqrstu"), name=st.sampled_from(NAMES), tokens=st.integers(0, 99))
    def dispatch(self, rid: str, name: str, tokens: int) -> None:
        self.ledger.add_dispatch(rid, name, tokens, self.now_s)
        self.known[rid] = _Known(name, tokens, self.now_s)

    @rule(rid=st.sampled_from("pqrstu"))
    def answer(self, rid: str) -> None:
        self.ledger.mark_answered(rid)
        if rid in self.known:
            self.known[rid].is_answered = True

    @rule(rid=st.sampled_from("pqrstu"))
    def remove(self, rid: str) -> None:
        self.ledger.remove_dispatch(rid)
        self.known.pop(rid, None)

    @rule(delta_s=st.floats(0, 1))
    def wait(self, delta_s: float) -> None:
        self.now_s += delta_s

    @rule(name=st.sampled_from(NAMES), tokens=st.integers(0, 99), running=st.integers(0, 3))
    def report(self, name: str, tokens: int, running: int) -> None:
        self.sequence += 1
        report = _report(name, self.sequence, self.now_s, tokens=tokens, running=running)
        self.ledger.add_report(report)
        self.reports[name] = report

    @rule(name=st.sampled_from(NAMES))
    def drop_report(self, name: str) -> None:
        self.ledger.drop_report(name)
        self.reports.pop(name, None)

    @rule(name=st.sampled_from(NAMES))
    def forget(self, name: str) -> None:
        self.ledger.forget_instance(name)
        self.reports.pop(name, None)
        self.known = {rid: k for rid, k in self.known.items() if k.instance != name}

    @invariant()
    def beliefs_agree(self) -> None:
        assert self.ledger.loads(NAMES) == {name: self._recount(name) for name in NAMES}

    def _recount(self, name: str) -> InstanceLoad:
        mine = [k for k in self.known.values() if k.instance == name]
        waiting = [k for k in mine if not k.is_answered]
        answered = len(mine) - len(waiting)
        report = self.reports.get(name)
        if report is None:
            return InstanceLoad(sum(k.tokens for k in waiting), answered, len(waiting))
        unseen = [k for k in waiting if k.at_s > report.last_pass_s - SETTLE_S]
        return InstanceLoad(
            report.waiting_uncached_tokens + sum(k.tokens for k in unseen),
            max(answered, report.running_requests),
            report.waiting_requests + len(unseen),
        )


TestLedgerAgainstRecount = LedgerAgainstRecount.TestCase


def test_a_burst_after_a_report_counts_on_top_of_it() -> None:
    ledger = LoadLedger(SETTLE_S)
    ledger.add_dispatch("old", "a", 100, 1.0)
    ledger.add_report(_report("a", 1, 2.0, waiting=1, tokens=40))
    for number in range(10):
        ledger.add_dispatch(f"new-{number}", "a", 10, 2.1)
    assert ledger.loads(["a"])["a"] == InstanceLoad(140, 0, 11)


def test_late_reports_are_ignored_and_a_new_life_is_not() -> None:
    ledger = LoadLedger(SETTLE_S)
    ledger.add_report(_report("a", 5, 1.0, tokens=5))
    ledger.add_report(_report("a", 4, 9.0, tokens=4))
    assert ledger.report_of("a") == _report("a", 5, 1.0, tokens=5)
    ledger.add_report(_report("a", 1, 2.0, epoch=2, tokens=1))
    assert ledger.loads(["a"])["a"].prefill_tokens == 1


def test_a_retry_moves_the_request() -> None:
    ledger = LoadLedger(SETTLE_S)
    ledger.add_dispatch("r", "a", 10, 0.0)
    ledger.mark_answered("r")
    ledger.add_dispatch("r", "b", 10, 1.0)
    assert ledger.loads(NAMES) == {"a": InstanceLoad(0, 0, 0), "b": InstanceLoad(10, 0, 1)}
    ledger.remove_dispatch("unknown")
    ledger.mark_answered("unknown")


def test_without_its_report_an_instance_is_counted_by_dispatches() -> None:
    ledger = LoadLedger(SETTLE_S)
    ledger.add_dispatch("r", "a", 100, 0.0)
    ledger.add_report(_report("a", 1, 2.0, waiting=5, tokens=4000, running=3))
    ledger.drop_report("a")
    assert ledger.report_of("a") is None
    assert ledger.loads(["a"])["a"] == InstanceLoad(100, 0, 1)
