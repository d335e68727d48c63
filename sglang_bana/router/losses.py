"""How an attempt can fail, and what that means for its request."""

from __future__ import annotations

import dataclasses
from enum import StrEnum

import aiohttp

from sglang_bana.router.errors import ApiError
from sglang_bana.router.flights import Cut, Flight
from sglang_bana.router.instances import Instance
from sglang_bana.router.retry import retry_headers
from sglang_bana.router.upstream import BROKEN, UNREACHABLE, InstanceDied

MAX_ATTEMPTS = 2


class Loss(StrEnum):
    """Why an attempt ended before its first byte. Only a crash counts towards poison.

    MOVED left a suspect; UNANSWERED was not let in within `connect_timeout_s`. Neither proves that
    anything died, so neither costs a request its one retry.
    """

    UNREACHABLE = "unreachable"
    CRASH = "crash"
    MOVED = "moved"
    UNANSWERED = "unanswered"


_HARMLESS = frozenset({Loss.MOVED, Loss.UNANSWERED})


@dataclasses.dataclass(slots=True)
class Trail:
    """Where a request has been: what it lost, who is not asked again, and who only if need be."""

    losses: list[Loss] = dataclasses.field(default_factory=list)
    lost_at: set[str] = dataclasses.field(default_factory=set)
    left: str = ""
    _left_alive: list[tuple[Instance, int]] = dataclasses.field(default_factory=list)

    def note(self, loss: Loss, instance: Instance) -> None:
        """An attempt on `instance` has failed."""
        self.losses.append(loss)
        self.left = instance.name
        if loss is Loss.MOVED:
            self._left_alive.append((instance, instance.deaths_total))
        if loss not in _HARMLESS:
            self.lost_at.add(instance.name)

    @property
    def crashes(self) -> int:
        """Instances that broke down over this request, also after it had left them as suspect."""
        died_since = sum(i.deaths_total > deaths for i, deaths in self._left_alive)
        return self.losses.count(Loss.CRASH) + died_since

    @property
    def proven(self) -> list[Loss]:
        """The losses that prove something dead."""
        return [loss for loss in self.losses if loss not in _HARMLESS]


class Lost(Exception):
    """The attempt failed while the client had seen nothing of an answer."""

    def __init__(self, loss: Loss) -> None:
        super().__init__(loss)
        self.loss = loss


class StreamCut(Exception):
    """A stream that had begun ended with an error event; `code` says which."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


def explain_failure(flight: Flight, instance: Instance, error: Exception) -> Lost | ApiError:
    """What a failed attempt means while its client has seen nothing of an answer."""
    if flight.cut is Cut.MOVED:
        return Lost(Loss.MOVED)
    if flight.cut is Cut.CRASHED:
        return Lost(Loss.CRASH)
    if flight.cut is not None:
        what = f"instance {instance.name} sent nothing within the server's limit"
        return explain_cut(flight, what)
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return Lost(Loss.UNANSWERED)
    if isinstance(error, UNREACHABLE):
        return Lost(Loss.UNREACHABLE)
    if isinstance(error, (*BROKEN, InstanceDied)):
        return Lost(Loss.CRASH)
    return ApiError(
        502,
        "bad_instance_answer",
        f"instance {instance.name} sent no valid HTTP answer: {type(error).__name__}",
    )


def explain_cut(flight: Flight, lateness: str) -> ApiError:
    """What its client is told of a request that the front door itself ended."""
    if flight.cut is Cut.DRAIN:
        return explain_drain()
    if flight.cut is Cut.ABORTED:
        return ApiError(400, Cut.ABORTED, "it was aborted before any instance had it")
    return ApiError(504, flight.cut or Cut.FIRST_BYTE, lateness)


def explain_drain() -> ApiError:
    """What is still under way when the front door ends."""
    return ApiError(
        503,
        "draining",
        "the server is shutting down and its drain time is over; try another or try again later",
        headers=retry_headers(1.0),
    )


def judge_losses(trail: Trail, slack_s: float) -> None:
    """Return when the request may be sent once more; ApiError when it may not."""
    proven = trail.proven
    if trail.crashes >= MAX_ATTEMPTS:
        raise ApiError(
            502,
            "poison_request",
            "two instances broke down while they held this request; it is not tried again",
            headers={"x-should-retry": "false"},
        )
    if not proven or (len(proven) < MAX_ATTEMPTS and slack_s > 0):
        return
    raise ApiError(
        503,
        "instance_lost",
        f"the instance was lost before it answered ({', '.join(trail.losses)}) and no retry is "
        "left for this one; try again later",
        headers=retry_headers(1.0),
    )
