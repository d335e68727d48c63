"""Learns from the steps of this rank what the next ones will take, and how its time is shared.

chunk ─ decode ─ decode ─ chunk      what lies between two chunks while a prompt waits
└──── wall time of a chunk ──┘       is what the first one took in truth
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bana.slo.estimate import StepEstimator
from bana.slo.inflation import LoadTracker
from bana.slo.steps import StepModel, StepShape, count_attended
from sglang_bana.engine.scheduling.passes import PassInputs
from sglang_bana.engine.scheduling.step_watch import RunsIn, StepTime, StepWatch

# Of a KV pool that is nearly full, and of a running request while none has been seen.
NEARLY = 0.9
USUAL_CONTEXT_TOKENS = 1024


class StepLearner:
    """The estimator and the load tracker of one rank; only its scheduler's thread calls them."""

    def __init__(self, scheduler: Any, prior: StepModel | None = None) -> None:
        runs_in = RunsIn.LAUNCH if scheduler.device == "cpu" else RunsIn.DEVICE
        self.estimator = StepEstimator(prior)
        self.tracker = LoadTracker()
        self._scheduler = scheduler
        self._watch = StepWatch(runs_in)
        self._wall_s = 0.0
        self._chunk: StepShape | None = None
        self._context_tokens = USUAL_CONTEXT_TOKENS

    def inputs(self, now_s: float) -> PassInputs:
        """What all ranks decide with at `now_s`."""
        model = self.estimator.model
        load = self.tracker.estimate_load(model, self._full_chunk(), self._full_batch())
        return PassInputs(now_s, model, load)

    @contextmanager
    def timing(self, batch: Any) -> Iterator[None]:
        """Around the launch of a step."""
        launch = self._watch.begin(batch)
        yield
        self._watch.launched(launch)

    def note_result(self) -> None:
        """The oldest step in flight has ended."""
        seen = self._watch.ended()
        if seen is None:
            return
        self.estimator.observe(seen.shape, seen.seconds_s)
        if seen.shape.decode_requests:
            self._context_tokens = seen.shape.context_tokens // seen.shape.decode_requests
        self._share(seen)

    def note_pause(self) -> None:
        """This pass launches no step."""
        self._watch.rest()

    def note_idle(self) -> None:
        """Nothing runs and nothing waits: the next prompt will be alone."""
        self._chunk = None
        self.tracker.observe_idle()

    def note_portion(self, prompt_tokens: int, demoted_tokens: int) -> None:
        """So much of one prompt is computed next, this much of it for a lost request."""
        self.tracker.observe_portion(prompt_tokens, demoted_tokens)

    def _share(self, seen: StepTime) -> None:
        """A chunk lasts until the next; decode steps count only while a prompt waits for one."""
        if seen.shape.prefill_tokens:
            self._close_chunk()
            prompts_alone = StepShape(seen.shape.prefill_tokens, seen.shape.attended_tokens)
            self._chunk, self._wall_s = prompts_alone, seen.seconds_s
        elif self._scheduler.waiting_queue or self._scheduler.chunked_req is not None:
            self._wall_s += seen.seconds_s
        else:
            self._close_chunk()

    def _close_chunk(self) -> None:
        if self._chunk is not None:
            alone_s = self.estimator.model.estimate_step_s(self._chunk)
            self.tracker.observe_chunk(self._wall_s, alone_s)
        self._chunk = None

    def _full_chunk(self) -> StepShape:
        scheduler = self._scheduler
        tokens = int(scheduler.chunked_prefill_size or scheduler.max_prefill_tokens)
        return StepShape(prefill_tokens=tokens, attended_tokens=count_attended(tokens, 0))

    def _full_batch(self) -> StepShape:
        context_tokens = int(NEARLY * self._scheduler.max_total_num_tokens)
        fitting = context_tokens // max(self._context_tokens, 1)
        requests = max(1, min(fitting, int(self._scheduler.max_running_requests)))
        return StepShape(
            decode_requests=requests, context_tokens=requests * max(self._context_tokens, 1)
        )
