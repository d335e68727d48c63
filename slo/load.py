"""How loaded each instance is: own dispatches, corrected by what instances publish.

A request is counted when it is dispatched, so that a burst does not pile onto one instance
between two reports. A report replaces the ledger's belief about the requests that the instance
had seen when it was made; later dispatches stay on top.

    dispatch ──▶ waiting (prompt tokens outstanding) ──first byte──▶ decoding ──finish──▶ gone
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from bana.slo.wire import LoadReport


class Dispatch(msgspec.Struct, frozen=True):
    """One request on its way: where, how large, since when."""

    instance: str
    prompt_tokens: int
    dispatched_s: float


class InstanceLoad(msgspec.Struct, frozen=True):
    """The corrected belief about one instance."""

    prefill_tokens: int
    decode_requests: int
    waiting_requests: int


class LoadLedger:
    """The front door's count of outstanding work per instance.

    Memory is bounded by the requests in flight, which the front door limits. `settle_s` is how
    long a dispatch may take to appear in a report. All methods are O(1), amortised over the
    requests that a report accounts for; `forget_instance` is O(requests in flight).
    """

    def __init__(self, settle_s: float = 0.25) -> None:
        self._settle_s = settle_s
        self._dispatches: dict[str, Dispatch] = {}
        self._books: dict[str, _Book] = {}

    def add_dispatch(self, rid: str, instance: str, prompt_tokens: int, now_s: float) -> None:
        """Count request `rid` on `instance`; a retry under the same rid moves it."""
        self.remove_dispatch(rid)
        dispatch = Dispatch(instance, prompt_tokens, now_s)
        self._dispatches[rid] = dispatch
        self._book(instance).add(rid, dispatch)

    def mark_answered(self, rid: str) -> None:
        """Its first byte came: the prompt is computed. Unknown rids are ignored."""
        dispatch = self._dispatches.get(rid)
        if dispatch is not None:
            self._book(dispatch.instance).answer(rid)

    def remove_dispatch(self, rid: str) -> None:
        """It ended, however. Unknown rids are ignored."""
        dispatch = self._dispatches.pop(rid, None)
        if dispatch is not None:
            self._book(dispatch.instance).remove(rid)

    def add_report(self, report: LoadReport) -> None:
        """Take a report unless a newer one of the same process life is known."""
        book = self._book(report.instance)
        known = book.report
        is_stale = (
            known is not None and known.epoch == report.epoch and known.sequence >= report.sequence
        )
        if not is_stale:
            book.report = report
            book.settle(report.last_pass_s - self._settle_s)

    def forget_instance(self, instance: str) -> None:
        """The instance is gone: its report and its dispatches mean nothing any more."""
        self._books.pop(instance, None)
        for rid in [r for r, d in self._dispatches.items() if d.instance == instance]:
            del self._dispatches[rid]

    def drop_report(self, instance: str) -> None:
        """The instance tells its load no longer: count by dispatches alone until it does."""
        self._book(instance).report = None

    def report_of(self, instance: str) -> LoadReport | None:
        """The newest report, None before the first."""
        return self._book(instance).report

    def loads(self, instances: Iterable[str]) -> Mapping[str, InstanceLoad]:
        """The belief about each of `instances`."""
        return {name: self._book(name).believe() for name in instances}

    def _book(self, instance: str) -> _Book:
        book = self._books.get(instance)
        if book is None:
            book = self._books[instance] = _Book()
        return book


class _Book:
    """One instance's dispatches: unseen by its newest report (oldest first), seen, answered."""

    def __init__(self) -> None:
        self.report: LoadReport | None = None
        self._unseen: dict[str, Dispatch] = {}
        self._seen: dict[str, Dispatch] = {}
        self._answered: set[str] = set()
        self._unseen_tokens = 0
        self._seen_tokens = 0

    def add(self, rid: str, dispatch: Dispatch) -> None:
        """Count a new dispatch."""
        self._unseen[rid] = dispatch
        self._unseen_tokens += dispatch.prompt_tokens

    def answer(self, rid: str) -> None:
        """Its prompt is computed."""
        self._drop_waiting(rid)
        self._answered.add(rid)

    def remove(self, rid: str) -> None:
        """It is over."""
        self._drop_waiting(rid)
        self._answered.discard(rid)

    def settle(self, horizon_s: float) -> None:
        """What was dispatched by `horizon_s` is accounted for by the report from now on."""
        while self._unseen:
            rid = next(iter(self._unseen))
            dispatch = self._unseen[rid]
            if dispatch.dispatched_s > horizon_s:
                return
            del self._unseen[rid]
            self._unseen_tokens -= dispatch.prompt_tokens
            self._seen[rid] = dispatch
            self._seen_tokens += dispatch.prompt_tokens

    def believe(self) -> InstanceLoad:
        """The report, with what it has not seen on top."""
        report, decoding = self.report, len(self._answered)
        if report is None:
            return InstanceLoad(
                prefill_tokens=self._unseen_tokens + self._seen_tokens,
                decode_requests=decoding,
                waiting_requests=len(self._unseen) + len(self._seen),
            )
        engine_tokens = report.waiting_uncached_tokens + report.prefilling_tokens
        return InstanceLoad(
            prefill_tokens=engine_tokens + self._unseen_tokens,
            decode_requests=max(decoding, report.running_requests),
            waiting_requests=report.waiting_requests + len(self._unseen),
        )

    def _drop_waiting(self, rid: str) -> None:
        dispatch = self._unseen.pop(rid, None)
        if dispatch is not None:
            self._unseen_tokens -= dispatch.prompt_tokens
            return
        dispatch = self._seen.pop(rid, None)
        if dispatch is not None:
            self._seen_tokens -= dispatch.prompt_tokens
