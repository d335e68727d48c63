"""The plain sentence at the end: the answer, and what limited it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from bana.eval.requests import Ending
from bana.eval.summary import Dimension, Group, MaxRate, Summary

WORDS: Mapping[Dimension, str] = {
    Dimension.NO_ANSWER: "no answer",
    Dimension.E2E: "end to end",
    Dimension.TPOT: "TPOT",
    Dimension.TTFT: "TTFT",
}


def tell_number(number: float) -> str:
    """A number to three digits, or to the unit where that is more."""
    return f"{number:.3g}" if abs(number) < 1000 else f"{number:.0f}"


def tell_share(share: float) -> str:
    """A share in per cent, rounded down: 100 % is all of them."""
    return f"{math.floor(share * 1000 + 1e-9) / 10:.4g} %"


def tell_rate(rate_rps: float) -> str:
    """Requests or answers per second."""
    return f"{tell_number(rate_rps)}/s"


def compose_sentence(summary: Summary) -> str:
    """What one run amounts to; first of all, whether it proves anything."""
    return " ".join([*_list_warnings(summary), _tell_result(summary)])


def compose_capacity(max_rate: MaxRate) -> str:
    """What a load grid amounts to."""
    target = tell_share(max_rate.target)
    if max_rate.rps is None:
        return f"No max rate at {target} attainment: it {max_rate.reason}."
    return f"Max rate {tell_rate(max_rate.rps)} at {target} attainment: it {max_rate.reason}."


def _list_warnings(summary: Summary) -> list[str]:
    reasons = [] if summary.validity.is_valid else list(summary.validity.reasons)
    if summary.is_interrupted:
        reasons.append(f"it was interrupted after {tell_number(summary.duration_s)} s")
    if summary.validity.is_valid and not reasons:
        return []
    return [f"This run proves nothing: {'; '.join(reasons) or 'it is not valid'}."]


def _tell_result(summary: Summary) -> str:
    overall = summary.overall
    if overall.offered == 0:
        return "Nothing was measured."
    rate = f"{tell_number(summary.offered_rps)} requests/s"
    if _count_answered(overall) == 0:
        fates = _tell_fates(overall)
        return f"None of {_count(overall.offered)} was answered at {rate}: {fates}."
    if not set(overall.missed) - {Dimension.NO_ANSWER}:
        return _tell_unlimited(overall, rate)
    return _tell_limited(summary, rate)


def _tell_unlimited(overall: Group, rate: str) -> str:
    fates = f" ({_tell_fates(overall)})" if overall.met < overall.offered else ""
    answers = f"{overall.met} of {_count(overall.offered)} were answered at {rate}"
    return f"{answers}{fates}; no limits were set."


def _tell_limited(summary: Summary, rate: str) -> str:
    overall = summary.overall
    goodput = f"(goodput {tell_rate(overall.goodput_rps.value)})"
    if overall.met == overall.offered:
        whole = f"All of {_count(overall.offered)} met their limits at {rate} {goodput}"
        return f"{whole}; nothing limited it at this rate."
    share = tell_share(overall.attainment.value)
    parts = [f"{share} of {_count(overall.offered)} met their limits at {rate} {goodput}"]
    parts.append(f"what limited it: {_tell_limit(overall)}")
    parts.extend(_tell_worst(summary.worst_class, summary.classes))
    return "; ".join(parts) + "."


def _tell_limit(overall: Group) -> str:
    """What most requests missed; of equals, what weighs more."""
    worst = max(WORDS, key=lambda dimension: overall.missed.get(dimension, 0))
    counts = f"{overall.missed[worst]} of {overall.offered - overall.met}"
    if worst is Dimension.NO_ANSWER:
        return f"no answer to {counts} ({_tell_fates(overall)})"
    return f"{WORDS[worst]}, missed by {counts}"


def _tell_worst(name: str | None, classes: Sequence[Group]) -> list[str]:
    found = [g for g in classes if g.name == name]
    return [f"worst class: {g.name} ({tell_share(g.attainment.value)})" for g in found]


def _tell_fates(overall: Group) -> str:
    """How the unanswered ended; those of them that finished had no token."""
    fates = {e.value: overall.endings.get(e, 0) for e in Ending}
    whole = fates.pop(Ending.FINISHED) + fates.pop(Ending.CANCELLED)
    fates["empty"] = whole - _count_answered(overall)
    return ", ".join(f"{count} {fate}" for fate, count in fates.items() if count)


def _count_answered(overall: Group) -> int:
    return overall.offered - overall.missed.get(Dimension.NO_ANSWER, 0)


def _count(requests: int) -> str:
    return "1 request" if requests == 1 else f"{requests} requests"
