"""How a request ended, in one word, and what that means for what it was promised."""

from __future__ import annotations

from sglang_bana.router.flights import Cut, Flight

# Why a request is turned away: before its promise is known, and after.
EARLY_REJECTIONS = frozenset({"overloaded", "key_overloaded", "draining"})
REJECTIONS = frozenset({"class_overloaded", "engine_429"})


def name_outcome(status: int) -> str:
    """The word for an instance's answer."""
    if status == 429:
        return "engine_429"
    return "ok" if status < 400 else f"engine_{status // 100}xx"


def is_rejected(flight: Flight, outcome: str) -> bool:
    """Whether it was turned away, for want of room or of time."""
    return outcome in (REJECTIONS if flight.slo is not None else EARLY_REJECTIONS)


def judge_promise(flight: Flight, outcome: str) -> str:
    """What became of a promise: one word a request, so that the words add up to all requests."""
    if is_rejected(flight, outcome):
        return "rejected"
    if outcome in ("disconnected", Cut.ABORTED):
        return "cancelled"
    if outcome == "engine_4xx":
        return "invalid"
    if outcome != "ok":
        return "failed"
    if flight.is_in_time is None:
        return "unobserved"
    return "ttft_met" if flight.is_in_time else "ttft_missed"
