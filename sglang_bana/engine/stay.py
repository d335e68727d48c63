"""What a store means to one request while it is here, kept at the request itself."""

from __future__ import annotations

from typing import Any


class Stay:
    """Written by the store's side of a scheduler, read by all; the scheduler's thread alone.

    `arrived_s` is when it came, by the clock of all ranks, None where that was not noted.
    `is_expected`: its pages were asked for before it entered the queue. `is_elsewhere`: another
    instance computes its prompt. `is_lost`: a load of its step failed, whose result is not used.
    Up to `meet_tokens` it is computed before it looks what was fetched meanwhile; 0 for no meeting.
    `restored` are its tokens by the place they came from, `restored_before` those up to a meeting,
    `device_tokens` what the device had when it was first admitted.
    """

    __slots__ = (
        "arrived_s",
        "device_tokens",
        "is_attributed",
        "is_elsewhere",
        "is_expected",
        "is_lost",
        "meet_tokens",
        "restored",
        "restored_before",
    )

    def __init__(self) -> None:
        self.is_expected = self.is_elsewhere = self.is_lost = self.is_attributed = False
        self.arrived_s: float | None = None
        self.meet_tokens = 0
        self.restored: tuple[int, ...] = ()
        self.restored_before: tuple[int, ...] = ()
        self.device_tokens: int | None = None


def stay_of(req: Any) -> Stay:
    """The request's own; one that has none yet gets it."""
    stay: Stay | None = getattr(req, "bana_stay", None)
    if stay is None:
        stay = req.bana_stay = Stay()
    return stay


def is_elsewhere(req: Any) -> bool:
    """Whether another instance computes its prompt; of requests of any scheduler, with no trace."""
    stay: Stay | None = getattr(req, "bana_stay", None)
    return stay is not None and stay.is_elsewhere
