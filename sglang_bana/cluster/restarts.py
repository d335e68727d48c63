"""Whether, and how soon, a process that ended is started again.

ended ──▶ status 2: it said that its orders cannot work ──────▶ give up
      ──▶ never up, max_start_failures times in a row ────────▶ give up
      ──▶ more than max_restarts ends in restart_window_s ────▶ give up
      ──▶ otherwise after initial x 2^(recent ends - 1), at most backoff_max_s
"""

from __future__ import annotations

import msgspec

from sglang_bana.config import SupervisorConfig

REFUSED_STATUS = 2


class Ending(msgspec.Struct, frozen=True):
    """How a process ended: negative `status` is a signal; `was_up` if it had served before."""

    time_s: float
    status: int
    was_up: bool


class Restart(msgspec.Struct, frozen=True):
    """Start it again after `delay_s`."""

    delay_s: float


class GiveUp(msgspec.Struct, frozen=True):
    """Do not start it again, because of `reason`."""

    reason: str


def decide_restart(endings: tuple[Ending, ...], rules: SupervisorConfig) -> Restart | GiveUp:
    """What follows the last of `endings` (oldest first, never empty)."""
    last = endings[-1]
    if last.status == REFUSED_STATUS:
        return GiveUp("it refused its configuration")
    failures = _count_start_failures(endings)
    if failures >= rules.max_start_failures:
        return GiveUp(f"it ended {failures} times without ever serving")
    recent = sum(last.time_s - e.time_s < rules.restart_window_s for e in endings)
    if recent > rules.max_restarts:
        window_s = rules.restart_window_s
        return GiveUp(f"it ended {recent} times within {window_s:g} s")
    # Bounded before the power is taken: 2**1000 is no float.
    doublings = min(recent - 1, 30)
    return Restart(min(rules.backoff_initial_s * 2**doublings, rules.backoff_max_s))


def keep_recent(endings: tuple[Ending, ...], rules: SupervisorConfig) -> tuple[Ending, ...]:
    """The endings that may still count: at most one more than the bound."""
    return endings[-(max(rules.max_restarts, rules.max_start_failures) + 1) :]


def describe_status(status: int) -> str:
    """`killed by signal 9` or `ended with status 1`."""
    return f"killed by signal {-status}" if status < 0 else f"ended with status {status}"


def _count_start_failures(endings: tuple[Ending, ...]) -> int:
    count = 0
    for ending in reversed(endings):
        if ending.was_up:
            break
        count += 1
    return count
