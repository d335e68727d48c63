"""How long the steps of an engine really take, measured where they run.

device    launch N ─▶ launch N+1 ─▶ result N        N took from result N-1 (or its launch) on
CPU       launch N runs the forward itself          N took from the end of launch N-1 (or its begin)
                                                    to the end of launch N

What the scheduler does between two steps is in their time, as it is in the gaps clients see.
"""

from __future__ import annotations

import time
from collections import deque
from enum import StrEnum
from typing import Any

import msgspec

from bana.slo.steps import StepShape, count_attended

# Two batches are in flight at most; more means that results are lost, so the oldest are dropped.
MAX_IN_FLIGHT = 8


class RunsIn(StrEnum):
    """Where the time of a step is spent: a CPU computes in the call that launches it."""

    LAUNCH = "launch"
    DEVICE = "device"


class StepTime(msgspec.Struct, frozen=True):
    """One step that ran, and the seconds it took."""

    shape: StepShape
    seconds_s: float


class Launch:
    """A step that has been launched and whose result is awaited."""

    __slots__ = ("begun_s", "returned_s", "shape")

    def __init__(self, shape: StepShape, begun_s: float) -> None:
        self.shape = shape
        self.begun_s = begun_s
        self.returned_s = begun_s


class StepWatch:
    """Times each step of one scheduler; only the scheduler's thread calls it."""

    def __init__(self, runs_in: RunsIn) -> None:
        self._runs_in = runs_in
        self._launched: deque[Launch] = deque(maxlen=MAX_IN_FLIGHT)
        self._ended_s = 0.0
        # When the last launch returned, None where the next one does not follow on it.
        self._returned_s: float | None = None

    def begin(self, batch: Any) -> Launch:
        """The step is about to be launched."""
        begun_s = time.monotonic()
        if self._runs_in is RunsIn.LAUNCH and self._returned_s is not None:
            begun_s = self._returned_s
        return Launch(read_shape(batch), begun_s)

    def launched(self, launch: Launch) -> None:
        """The launch has returned; its result will come in turn."""
        launch.returned_s = self._returned_s = time.monotonic()
        self._launched.append(launch)

    def rest(self) -> None:
        """A pass launches nothing: the next step begins when it is launched."""
        self._returned_s = None

    def ended(self) -> StepTime | None:
        """The oldest step whose result has now been seen, with its seconds."""
        now_s = time.monotonic()
        begun_s, self._ended_s = self._ended_s, now_s
        if not self._launched:
            return None
        launch = self._launched.popleft()
        if self._runs_in is RunsIn.LAUNCH:
            return StepTime(launch.shape, launch.returned_s - launch.begun_s)
        return StepTime(launch.shape, now_s - max(begun_s, launch.begun_s))


def read_shape(batch: Any) -> StepShape:
    """The shape of SGLang's batch; of a mixed one the prompts come first."""
    mode = batch.forward_mode
    if mode.is_decode() or mode.is_target_verify():
        return StepShape(
            decode_requests=len(batch.reqs), context_tokens=sum(req.seqlen for req in batch.reqs)
        )
    if not mode.is_extend():
        return StepShape()
    decoding = batch.decoding_reqs or ()
    prompts = len(batch.reqs) - len(decoding)
    new, seen = batch.extend_lens[:prompts], batch.prefix_lens[:prompts]
    return StepShape(
        prefill_tokens=sum(new),
        attended_tokens=sum(map(count_attended, new, seen)),
        decode_requests=len(decoding),
        context_tokens=sum(req.seqlen for req in decoding),
    )
