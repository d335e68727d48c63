"""The parts of the simulated instance that its steps work on."""

from __future__ import annotations

import dataclasses

from bana.eval.simulator.deciding import Decider
from bana.eval.simulator.engine_spec import EngineSpec
from bana.eval.simulator.jobs import Job, Stage
from bana.eval.simulator.kv import KvPool
from bana.eval.simulator.load import LoadMeter
from bana.eval.simulator.log import Entry, EventLog, Happening
from bana.eval.simulator.predicting import Predictor
from bana.eval.simulator.ratio import OutputRatio
from bana.eval.simulator.rematching import Rematcher
from bana.eval.simulator.running import RunningBatch
from bana.eval.simulator.showing import Showing
from bana.eval.simulator.store.restoring import Restorer
from bana.eval.simulator.waiting import WaitingTable


@dataclasses.dataclass
class Machine:
    """Changed by every step. A request is in `waiting` until its prompt is computed, then in
    `running`; `slots` counts both those that decode and the half-done."""

    spec: EngineSpec
    decider: Decider
    predictor: Predictor
    load: LoadMeter
    log: EventLog
    kv: KvPool
    waiting: WaitingTable
    running: RunningBatch
    rematcher: Rematcher
    ratio: OutputRatio
    showing: Showing
    restorer: Restorer | None = None

    @property
    def slots(self) -> int:
        """How many requests hold a place in the batch."""
        return len(self.running) + self.waiting.started

    def count_delayed(self) -> int:
        """How many requests wait for this engine; whose prompt was cut last is in no queue."""
        return max(0, len(self.waiting) - (self.waiting.started > 0))

    def reserve_tokens(self) -> float:
        """Tokens that the requests in the batch are expected to need beyond what they hold."""
        started = self.waiting.list_started() if self.waiting.started else []
        prompts = sum(job.target - job.done for job in started)
        outputs = sum(self.expect_outputs(job) for job in started)
        return prompts + outputs + self.running.reserve_tokens(self.ratio.value)

    def expect_outputs(self, job: Job) -> float:
        """How many tokens an answer is expected to have still."""
        return job.outputs_left * (self.ratio.value if job.is_open_ended else 1.0)

    def note(self, kind: Happening, at_s: float, job: Job) -> None:
        """Something happened to a request."""
        self.log.add(Entry(kind, at_s, job.index))

    def queue(self, job: Job) -> None:
        """A request waits, for the first time or again, and asks the store if there is one."""
        self.resume(job)
        if self.restorer is not None and self.decider.does_fetch:
            self.restorer.expect(job)

    def resume(self, job: Job) -> None:
        """A request may run."""
        job.stage = Stage.WAITING
        self.waiting.add(job, 0.0)
        self.rematcher.watch(job)

    def leave_store(self, job: Job) -> None:
        """A request wants nothing of the store any more."""
        if self.restorer is not None:
            self.restorer.leave(job)

    def leave_queue(self, job: Job) -> None:
        """A request waits no longer."""
        self.waiting.remove(job)
        self.rematcher.forget(job)

    def yield_prompt(self, job: Job, at_s: float) -> None:
        """A half-done prompt gives back what it holds and waits anew."""
        self.kv.drop(job, job.done)
        self.waiting.mark_waiting(job)
        self.rematcher.watch(job)
        self.note(Happening.RETRACTED, at_s, job)
