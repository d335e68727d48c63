"""Learns from the steps of this rank what the next ones will take, and how its time is shared."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bana.slo.estimate import StepEstimator
from bana.slo.inflation import LoadTracker
from sglang_bana.engine.passes import PassInputs
from sglang_bana.engine.step_watch import RunsIn, StepWatch


class StepLearner:
    """The estimator and the load tracker of one rank; only its scheduler's thread calls them."""

    def __init__(self, scheduler: Any) -> None:
        runs_in = RunsIn.LAUNCH if scheduler.device == "cpu" else RunsIn.DEVICE
        self.estimator = StepEstimator()
        self.tracker = LoadTracker()
        self._watch = StepWatch(runs_in)

    def inputs(self, now_s: float) -> PassInputs:
        """What all ranks decide with at `now_s`."""
        return PassInputs(now_s, self.estimator.model, self.tracker.load)

    @contextmanager
    def timing(self, batch: Any) -> Iterator[None]:
        """Around the launch of a step."""
        launch = self._watch.begin(batch)
        yield
        self._watch.launched(launch)

    def note_result(self) -> None:
        """The oldest step in flight has ended."""
        seen = self._watch.ended()
        if seen is not None:
            self.estimator.observe(seen.shape, seen.seconds_s)
            self.tracker.note_step(seen.shape, seen.seconds_s)
