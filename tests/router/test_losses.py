"""What failed attempts mean for their request."""

from __future__ import annotations

import aiohttp
import pytest
from aiohttp.client_reqrep import ConnectionKey

from sglang_bana.config import UpstreamSpec
from sglang_bana.router.endpoints import find_endpoint
from sglang_bana.router.errors import ApiError
from sglang_bana.router.flights import Cut, Flight
from sglang_bana.router.instances import Instance, InstanceBoard
from sglang_bana.router.keys import Grant
from sglang_bana.router.losses import Loss, Lost, Trail, explain_failure, judge_losses

MOVED, UNANSWERED = Loss.MOVED, Loss.UNANSWERED
UNREACHABLE, CRASH = Loss.UNREACHABLE, Loss.CRASH
_ADDRESS = ConnectionKey("a", 1, False, True, None, None, None)


def _trail(losses: list[Loss]) -> Trail:
    trail = Trail()
    for place, loss in enumerate(losses):
        trail.note(loss, _instance(f"instance-{place}"))
    return trail


def _instance(name: str) -> Instance:
    return Instance(UpstreamSpec(name, f"http://{name}"), name)


def test_an_instance_that_dies_after_it_was_left_has_broken_down() -> None:
    board = InstanceBoard([UpstreamSpec("a", "http://a")], suspect_after_s=5.0)
    left, trail = board.all()[0], Trail()
    board.observe_ready(left, 0.0)
    trail.note(MOVED, left)
    trail.note(CRASH, _instance("b"))
    judge_losses(trail, 1.0)
    board.observe_refusal(left)
    with pytest.raises(ApiError) as raised:
        judge_losses(trail, 1.0)
    assert raised.value.code == "poison_request"


@pytest.mark.parametrize(
    ("losses", "slack_s"),
    [
        ([CRASH], 1.0),
        ([UNREACHABLE], 1.0),
        # Where nothing was proven dead, nothing is lost, however late it is.
        ([MOVED], -1.0),
        ([UNANSWERED, UNANSWERED, MOVED], -1.0),
        ([MOVED, CRASH], 1.0),
        ([MOVED, UNREACHABLE], 1.0),
    ],
)
def test_losses_after_which_a_request_is_sent_again(losses: list[Loss], slack_s: float) -> None:
    judge_losses(_trail(losses), slack_s)


@pytest.mark.parametrize(
    ("losses", "slack_s", "code"),
    [
        ([UNREACHABLE, CRASH], 1.0, "instance_lost"),
        ([MOVED, UNREACHABLE, CRASH], 1.0, "instance_lost"),
        ([CRASH, CRASH], 1.0, "poison_request"),
        ([CRASH, MOVED, CRASH], 1.0, "poison_request"),
        ([CRASH], 0.0, "instance_lost"),
        ([MOVED, CRASH], 0.0, "instance_lost"),
    ],
)
def test_losses_end_a_request(losses: list[Loss], slack_s: float, code: str) -> None:
    with pytest.raises(ApiError) as raised:
        judge_losses(_trail(losses), slack_s)
    assert raised.value.code == code


def test_only_what_broke_is_never_asked_again() -> None:
    trail = _trail([MOVED, CRASH, UNREACHABLE, UNANSWERED])
    assert trail.lost_at == {"instance-1", "instance-2"}
    assert trail.left == "instance-3"


def _flight(cut: Cut | None = None) -> Flight:
    endpoint = find_endpoint("/generate")
    assert endpoint is not None
    return Flight("id", endpoint, Grant(), 0.0, 0.0, cut=cut)


@pytest.mark.parametrize(
    ("cut", "error", "loss"),
    [
        (Cut.MOVED, TimeoutError(), MOVED),
        (Cut.CRASHED, TimeoutError(), CRASH),
        (None, aiohttp.ConnectionTimeoutError(), UNANSWERED),
        (None, aiohttp.ClientConnectorError(_ADDRESS, OSError(111, "refused")), UNREACHABLE),
        (None, aiohttp.ServerDisconnectedError(), CRASH),
    ],
)
def test_how_an_attempt_fails(cut: Cut | None, error: Exception, loss: Loss) -> None:
    instance = Instance(UpstreamSpec("a", "http://a"), "tag")
    failure = explain_failure(_flight(cut), instance, error)
    assert isinstance(failure, Lost)
    assert failure.loss is loss


@pytest.mark.parametrize(
    ("cut", "status", "code"),
    [
        (Cut.FIRST_BYTE, 504, "first_byte_timeout"),
        (Cut.STALL, 504, "stall_timeout"),
        (Cut.DRAIN, 503, "draining"),
        (Cut.ABORTED, 400, "aborted"),
    ],
)
def test_what_the_front_door_cuts_says_why(cut: Cut, status: int, code: str) -> None:
    instance = Instance(UpstreamSpec("a", "http://a"), "tag")
    failure = explain_failure(_flight(cut), instance, TimeoutError())
    assert isinstance(failure, ApiError)
    assert (failure.status, failure.code) == (status, code)


def test_a_request_leaves_a_suspect_once_and_in_time() -> None:
    flight = _flight()
    flight.retry_by_s, flight.attempts = 10.0, 1
    assert flight.may_move(9.0)
    assert not flight.may_move(11.0)
    flight.attempts = 2
    assert not flight.may_move(9.0)
    flight.attempts, flight.answered_s = 1, 5.0
    assert not flight.may_move(9.0)
