"""What went wrong, by kind: how it ended, the status, the code and the words of the server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from bana.eval.report.text import clean_text
from bana.eval.requests import Ending, Observed

MAX_KINDS = 20
GOOD = frozenset({Ending.FINISHED, Ending.CANCELLED})


class Failure(msgspec.Struct, frozen=True):
    """One kind of failure; `error` is bounded and clean."""

    ending: Ending
    status: int | None
    code: str
    error: str


class Tally(msgspec.Struct, frozen=True):
    """The most frequent kinds with their counts, and what is left beyond the bound."""

    kinds: tuple[Counted, ...]
    further_kinds: int
    further_requests: int


class Counted(msgspec.Struct, frozen=True):
    """How often one kind of failure happened."""

    failure: Failure
    count: int


def tally_failures(observed: Sequence[Observed]) -> Tally:
    """Failures by kind, the most frequent first; planned cancellations are none."""
    counts = Counter(_classify(o) for o in observed if o.ending not in GOOD)
    ordered = sorted(counts.items(), key=_rank)
    shown, rest = ordered[:MAX_KINDS], ordered[MAX_KINDS:]
    return Tally(
        kinds=tuple(Counted(failure, count) for failure, count in shown),
        further_kinds=len(rest),
        further_requests=sum(count for _, count in rest),
    )


def _rank(item: tuple[Failure, int]) -> tuple[int, str, str]:
    failure, count = item
    return (-count, failure.ending.value, f"{failure.status} {failure.code} {failure.error}")


def _classify(observed: Observed) -> Failure:
    return Failure(
        ending=observed.ending,
        status=observed.status,
        code=clean_text(observed.code or "", 40),
        error=clean_text(observed.error or ""),
    )
