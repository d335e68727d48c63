"""When a process that ended is started again, and when it is given up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sglang_bana.cluster.restarts import (
    Ending,
    GiveUp,
    Restart,
    decide_restart,
    describe_status,
    keep_recent,
)
from sglang_bana.config import SupervisorConfig

RULES = SupervisorConfig(max_restarts=3, restart_window_s=100, backoff_initial_s=1, backoff_max_s=5)


def crashes(*times_s: float) -> tuple[Ending, ...]:
    return tuple(Ending(time_s, -9, was_up=True) for time_s in times_s)


def test_backoff_doubles_up_to_its_bound() -> None:
    rules = SupervisorConfig(max_restarts=9, backoff_initial_s=1, backoff_max_s=5)
    delays = [decide_restart(crashes(*range(n)), rules) for n in range(1, 6)]
    assert delays == [Restart(1), Restart(2), Restart(4), Restart(5), Restart(5)]


def test_too_many_crashes_within_the_window_are_given_up() -> None:
    assert isinstance(decide_restart(crashes(0, 1, 2), RULES), Restart)
    decision = decide_restart(crashes(0, 1, 2, 3), RULES)
    assert decision == GiveUp("it ended 4 times within 100 s")


def test_crashes_outside_the_window_are_forgotten() -> None:
    assert decide_restart(crashes(0, 1, 2, 500), RULES) == Restart(1)


def test_never_serving_is_given_up_sooner() -> None:
    failed = tuple(Ending(t, 1, was_up=False) for t in (0.0, 1.0))
    assert isinstance(decide_restart(failed[:1], RULES), Restart)
    assert decide_restart(failed, RULES) == GiveUp("it ended 2 times without ever serving")
    assert isinstance(decide_restart((failed[0], *crashes(1), failed[1]), RULES), Restart)


def test_refused_orders_are_given_up_at_once() -> None:
    assert isinstance(decide_restart((Ending(0, 2, was_up=False),), RULES), GiveUp)


def test_no_restarts_allowed_means_none() -> None:
    rules = SupervisorConfig(max_restarts=0)
    assert isinstance(decide_restart(crashes(0), rules), GiveUp)


@given(st.lists(st.tuples(st.floats(0, 1e4), st.booleans()), min_size=1, max_size=40))
def test_forgetting_old_endings_changes_no_decision(history) -> None:
    endings = tuple(Ending(t, 1, was_up=up) for t, up in sorted(history))
    kept: tuple[Ending, ...] = ()
    for ending in endings:
        kept = keep_recent((*kept, ending), RULES)
    assert len(kept) <= 4
    whole, recent = decide_restart(endings, RULES), decide_restart(kept, RULES)
    assert type(whole) is type(recent)
    assert isinstance(whole, GiveUp) or whole == recent


def test_status_is_told_in_words() -> None:
    assert describe_status(-9) == "killed by signal 9"
    assert describe_status(1) == "ended with status 1"
