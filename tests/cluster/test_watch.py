"""When an instance counts as up, and when it must be killed."""

from __future__ import annotations

import pytest

from sglang_bana.cluster.watch import Life, decide_kill, is_up
from sglang_bana.config import SupervisorConfig
from sglang_bana.status import InstanceState, InstanceStatus

RULES = SupervisorConfig(start_timeout_s=100, suspect_after_s=1, kill_after_s=10)


def seen(state: InstanceState, silent_s: float | None) -> InstanceStatus:
    return InstanceStatus(
        name="instance-0",
        url="http://127.0.0.1:1",
        state=state,
        silent_s=silent_s,
        in_flight=0,
        prefill_tokens=0,
        decode_requests=0,
        waiting_requests=0,
        dispatched_total=0,
        failures_total=0,
    )


@pytest.mark.parametrize(
    ("state", "silent_s", "age_s", "expected"),
    [
        (InstanceState.UP, 0.1, 30, True),
        (InstanceState.UP, 31.0, 30, False),
        (InstanceState.UP, None, 30, False),
        (InstanceState.SUSPECT, 0.1, 30, False),
        (InstanceState.STARTING, 0.1, 30, False),
    ],
)
def test_only_signs_of_the_present_life_count(state, silent_s, age_s, expected) -> None:
    assert is_up(seen(state, silent_s), age_s) is expected


def test_an_instance_that_is_not_seen_is_not_up() -> None:
    assert not is_up(None, 30)


@pytest.mark.parametrize(
    ("life", "reason"),
    [
        (Life(age_s=99, was_up=False, unseen_s=99), None),
        (Life(age_s=101, was_up=False, unseen_s=1), "start_timeout_s"),
        (Life(age_s=999, was_up=True, unseen_s=9), None),
        (Life(age_s=999, was_up=True, unseen_s=11), "kill_after_s"),
    ],
)
def test_kill_rules(life: Life, reason: str | None) -> None:
    decided = decide_kill(life, RULES)
    assert decided is None if reason is None else reason in str(decided)
