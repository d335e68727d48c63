"""How the engine shares its time, as the orders and admissions are shown it.

chunk │ decode │ decode │ chunk        the wall time of a chunk reaches to the next one, as
└─────── wall ─────────┘               long as prompts that could run are waiting
"""

from __future__ import annotations

from bana.eval.simulator.predicting import Belief
from bana.slo.inflation import LoadTracker
from bana.slo.order import EngineLoad
from bana.slo.steps import StepShape


class LoadMeter:
    """Told of every step by its shape and time. `chunk` and `full` stand for a full instance."""

    def __init__(self, belief: Belief, chunk: StepShape, full: StepShape) -> None:
        self._belief = belief
        self._chunk = chunk
        self._full = full
        self._tracker = LoadTracker()
        self._alone_s = 0.0
        self._wall_s = 0.0

    def load(self) -> EngineLoad:
        """The load now."""
        return self._tracker.estimate_load(self._belief.model, self._chunk, self._full)

    def observe_portion(self, prompt_tokens: int, demoted_tokens: int) -> None:
        """So many tokens of one prompt are computed next."""
        self._tracker.observe_portion(prompt_tokens, demoted_tokens)

    def observe_chunk(self, shape: StepShape, step_s: float) -> None:
        """A step with prompt work took `step_s`."""
        self.end_wait()
        alone = StepShape(shape.prefill_tokens, shape.attended_tokens)
        self._alone_s = self._belief.model.estimate_step_s(alone)
        self._wall_s = step_s

    def observe_decode(self, step_s: float) -> None:
        """Prompts that could have run waited for a decode step."""
        self._wall_s += step_s

    def end_wait(self) -> None:
        """The next chunk begins, or none could: the last one is counted."""
        if self._alone_s > 0:
            self._tracker.observe_chunk(self._wall_s, self._alone_s)
        self._alone_s = self._wall_s = 0.0

    def observe_idle(self) -> None:
        """The engine ran dry."""
        self.end_wait()
        self._tracker.observe_idle()
