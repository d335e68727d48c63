"""What the board believes of instances, from their signs of life."""

from __future__ import annotations

from typing import Any

import pytest

from bana.slo.errors import ConfigError
from sglang_bana.config import UpstreamSpec
from sglang_bana.router.instances import HTTP_PATIENCE, Instance, InstanceBoard
from sglang_bana.status import InstanceState

UP, SUSPECT, DOWN = InstanceState.UP, InstanceState.SUSPECT, InstanceState.DOWN
LONG_S = 5.0 * HTTP_PATIENCE


def _board(**spec: Any) -> InstanceBoard:
    return InstanceBoard([UpstreamSpec("a", "http://a", **spec)], suspect_after_s=5.0)


def test_the_state_machine() -> None:
    board = _board(load_endpoint="ipc://x")
    (instance,) = board.all()
    heard: list[tuple[InstanceState, InstanceState]] = []
    board.listen(lambda i, old: heard.append((old, i.state)))
    board.judge_silence(100.0)
    board.observe_refusal(instance)
    board.observe_answer(instance, 1.0)
    assert instance.state is InstanceState.STARTING
    board.observe_ready(instance, 2.0)
    assert board.usable() == [instance]
    # It still answers over HTTP, but its scheduler is silent.
    board.observe_answer(instance, 8.0)
    board.judge_silence(8.0)
    assert instance.state is InstanceState.SUSPECT
    assert instance.silent_s(8.0) == 6.0
    board.observe_report(instance, 9.0)
    board.judge_silence(9.0)
    assert instance.state is InstanceState.UP
    board.observe_refusal(instance)
    assert instance.silent_s(99.0) is None
    board.observe_answer(instance, 10.0)
    board.observe_ready(instance, 11.0)
    up, starting = InstanceState.UP, InstanceState.STARTING
    suspect, down = InstanceState.SUSPECT, InstanceState.DOWN
    assert heard == [
        (starting, up),
        (up, suspect),
        (suspect, up),
        (up, down),
        (down, starting),
        (starting, up),
    ]
    assert instance.failures_total == 2


def test_a_pause_of_our_own_is_nobodys_silence() -> None:
    board = _board(load_endpoint="ipc://x")
    (instance,) = board.all()
    board.observe_ready(instance, 1.0)
    # Its report was read at once after the pause, the answer to the next probe is under way.
    board.observe_report(instance, 62.0)
    board.excuse_silence(60.0, 62.0)
    board.judge_silence(62.0)
    assert (instance.state, instance.silent_s(62.0)) == (InstanceState.UP, 1.0)
    board.observe_answer(instance, 66.0)
    board.judge_silence(66.5)
    assert instance.state is InstanceState.UP
    board.judge_silence(67.5)
    assert instance.state is InstanceState.SUSPECT


def test_names_have_to_be_distinct() -> None:
    with pytest.raises(ConfigError, match="distinct"):
        InstanceBoard([UpstreamSpec("a", "http://a"), UpstreamSpec("a", "http://b")], 5.0)
    with pytest.raises(ConfigError, match="at least one"):
        InstanceBoard([], 5.0)


def test_an_instance_that_says_no_gets_no_work_while_another_says_yes() -> None:
    specs = [UpstreamSpec(name=n, url=f"http://{n}") for n in ("a", "b")]
    board = InstanceBoard(specs, suspect_after_s=5.0)
    for instance in board.all():
        board.observe_ready(instance, 1.0)
    first, second = board.all()
    board.observe_answer(first, 2.0)
    assert board.usable() == [second]
    board.observe_answer(second, 2.0)
    assert board.usable() == [first, second]
    board.observe_ready(first, 3.0)
    assert board.usable() == [first]


def _two(load_endpoint: str = "ipc://x") -> InstanceBoard:
    specs = [UpstreamSpec(n, f"http://{n}", load_endpoint=load_endpoint) for n in ("a", "b")]
    board = InstanceBoard(specs, suspect_after_s=5.0)
    for instance in board.all():
        board.observe_ready(instance, 100.0)
    return board


@pytest.mark.parametrize(
    ("load_endpoint", "report_age_s", "http_age_s", "state", "is_busy"),
    [
        ("ipc://x", 0.1, 0.1, UP, False),
        # Its scheduler works on, so its HTTP is merely late.
        ("ipc://x", 0.1, 5.1, UP, True),
        ("ipc://x", 4.9, LONG_S - 0.1, UP, True),
        ("ipc://x", 0.1, LONG_S + 0.1, SUSPECT, True),
        ("ipc://x", 5.1, 0.1, SUSPECT, True),
        ("ipc://x", 5.1, 5.1, SUSPECT, True),
        # An attached server tells nothing but HTTP.
        ("", 50.0, 4.9, UP, False),
        ("", 0.1, 5.1, SUSPECT, True),
    ],
)
def test_which_sign_may_be_missing_for_how_long(
    load_endpoint: str, report_age_s: float, http_age_s: float, state: InstanceState, is_busy: bool
) -> None:
    board = _two(load_endpoint)
    first, _ = board.all()
    board.observe_report(first, 200.0 - report_age_s)
    board.observe_answer(first, 200.0 - http_age_s)
    board.judge_silence(200.0)
    assert (first.state, first.is_busy) == (state, is_busy)
    # The launcher hears of both signs: a process that answers nobody is killed in the end.
    heard_s = max(report_age_s, http_age_s) if load_endpoint else http_age_s
    assert first.silent_s(200.0) == pytest.approx(heard_s)


def test_a_busy_instance_gets_work_only_when_all_are_busy() -> None:
    board = _two()
    first, second = board.all()
    board.observe_report(first, 106.0)
    board.observe_report(second, 106.0)
    board.observe_answer(second, 106.0)
    board.observe_ready(second, 106.0)
    board.judge_silence(106.0)
    assert board.usable() == [second]
    assert board.usable({"b"}) == [first]
    board.observe_report(first, 112.0)
    board.observe_report(second, 112.0)
    board.judge_silence(112.0)
    assert board.usable() == [first, second]


def test_an_answer_to_a_request_is_a_sign_of_life_of_this_life_only() -> None:
    board = _two()
    first, _ = board.all()
    board.observe_report(first, 106.0)
    board.observe_head(first, 105.0)
    board.judge_silence(106.0)
    assert (first.state, first.is_busy) == (UP, False)
    board.observe_refusal(first)
    board.observe_head(first, 107.0)
    assert (first.state, first.silent_s(107.0)) == (DOWN, None)


def test_nobody_hears_of_one_suspect_before_all_are_judged() -> None:
    board = _two()
    seen: list[list[Instance]] = []
    board.listen(lambda _, __: seen.append(board.usable()))
    board.judge_silence(106.0)
    assert [i.state for i in board.all()] == [SUSPECT, SUSPECT]
    assert seen == [[], []]


def test_whoever_is_about_to_fall_silent_is_not_lively() -> None:
    board = _two()
    first, second = board.all()
    assert board.has_lively(100.0)
    for instance in (first, second):
        board.observe_life(instance, 104.0)
    board.observe_report(second, 102.0)
    board.judge_silence(105.5)
    assert [first.state, second.state] == [SUSPECT, UP]
    assert not board.has_lively(105.5)
    board.observe_report(second, 106.0)
    assert board.has_lively(106.0)


def test_what_is_known_and_alive() -> None:
    board = _two()
    first, second = board.all()
    assert not board.is_known()
    first.was_probed = second.was_probed = True
    assert board.is_known()
    board.observe_refusal(first)
    assert board.is_alive()
    board.judge_silence(106.0)
    assert second.state is SUSPECT
    assert board.is_alive()
    board.observe_refusal(second)
    assert not board.is_alive()
