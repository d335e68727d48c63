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


class Dispatch(msgspec.Struct):
    """One request on its way: where, how large, since when, and whether it has answered."""

    instance: str
    prompt_tokens: int
    dispatched_s: float
    answered: bool = False


class InstanceLoad(msgspec.Struct, frozen=True):
    """The corrected belief about one instance."""

    prefill_tokens: int
    decode_requests: int
    waiting_requests: int


class LoadLedger:
    """The front door's count of outstanding work per instance.

    Memory is bounded by the requests in flight, which the front door limits. All methods are
    O(1) but `loads`, which is O(requests in flight); `settle_s` is how long a dispatch may
    take to appear in a report.
    """

    def __init__(self, settle_s: float = 0.25) -> None:
        self._settle_s = settle_s
        self._dispatches: dict[str, Dispatch] = {}
        self._reports: dict[str, LoadReport] = {}

    def add_dispatch(self, rid: str, instance: str, prompt_tokens: int, now_s: float) -> None:
        """Count request `rid` on `instance`; a retry under the same rid moves it."""
        self._dispatches[rid] = Dispatch(instance, prompt_tokens, now_s)

    def mark_answered(self, rid: str) -> None:
        """Its first byte came: the prompt is computed. Unknown rids are ignored."""
        dispatch = self._dispatches.get(rid)
        if dispatch is not None:
            dispatch.answered = True

    def remove_dispatch(self, rid: str) -> None:
        """It ended, however. Unknown rids are ignored."""
        self._dispatches.pop(rid, None)

    def add_report(self, report: LoadReport) -> None:
        """Take a report unless a newer one of the same process life is known."""
        known = self._reports.get(report.instance)
        is_stale = (
            known is not None and known.epoch == report.epoch and known.sequence >= report.sequence
        )
        if not is_stale:
            self._reports[report.instance] = report

    def forget_instance(self, instance: str) -> None:
        """The instance is gone: its report and its dispatches mean nothing any more."""
        self._reports.pop(instance, None)
        for rid in [r for r, d in self._dispatches.items() if d.instance == instance]:
            del self._dispatches[rid]

    def report_of(self, instance: str) -> LoadReport | None:
        """The newest report, None before the first."""
        return self._reports.get(instance)

    def loads(self, instances: Iterable[str]) -> Mapping[str, InstanceLoad]:
        """The belief about each of `instances`."""
        grouped: dict[str, list[Dispatch]] = {name: [] for name in instances}
        for dispatch in self._dispatches.values():
            if dispatch.instance in grouped:
                grouped[dispatch.instance].append(dispatch)
        return {name: self._believe(name, known) for name, known in grouped.items()}

    def _believe(self, name: str, known: list[Dispatch]) -> InstanceLoad:
        report = self._reports.get(name)
        waiting = [d for d in known if not d.answered]
        decoding = len(known) - len(waiting)
        if report is None:
            tokens = sum(d.prompt_tokens for d in waiting)
            return InstanceLoad(tokens, decoding, len(waiting))
        # What the instance had seen when it last passed its loop is taken from its report.
        horizon_s = report.last_pass_s - self._settle_s
        unseen = [d for d in waiting if d.dispatched_s > horizon_s]
        tokens = report.waiting_uncached_tokens + report.prefilling_tokens
        tokens += sum(d.prompt_tokens for d in unseen)
        return InstanceLoad(
            prefill_tokens=tokens,
            decode_requests=max(decoding, report.running_requests),
            waiting_requests=report.waiting_requests + len(unseen),
        )
