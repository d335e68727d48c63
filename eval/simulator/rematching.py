"""How much of each waiting prompt is at hand now, looked up again only where that may have changed.

a node's pages come or go ──▶ those who wait with it on their path ──▶ matched, predicted anew
pages come from the store ──▶ whose they are ───────────────────────┘
"""

from __future__ import annotations

from bana.eval.simulator.jobs import Job, Stage
from bana.eval.simulator.kv import KvPool
from bana.eval.simulator.predicting import Predictor
from bana.eval.simulator.prefixes import PrefixPlan
from bana.eval.simulator.waiting import WaitingTable


class ChangedNodes:
    """The shared nodes of the prefix cache that have changed since they were last taken."""

    def __init__(self, plan: PrefixPlan) -> None:
        self._shared = plan.shared
        self._changed: dict[int, None] = {}

    def add(self, node: int) -> None:
        """What is resident of a node is another; nodes beyond the plan have no prompt."""
        if node < len(self._shared) and self._shared[node]:
            self._changed[node] = None

    def take(self) -> list[int]:
        """The changed nodes, each once, in the order of their first change."""
        taken = list(self._changed)
        self._changed.clear()
        return taken

    def list_shared(self, path: tuple[int, ...]) -> list[int]:
        """The nodes of a path that other prompts have as well."""
        return [node for node in path if self._shared[node]]


class Rematcher:
    """Keeps `Job.matched` and the predictions of waiting requests up to date."""

    def __init__(
        self, kv: KvPool, waiting: WaitingTable, predictor: Predictor, changed: ChangedNodes
    ) -> None:
        self._kv = kv
        self._waiting = waiting
        self._predictor = predictor
        self._changed = changed
        self._watchers: dict[int, dict[int, Job]] = {}
        self._stale: dict[int, Job] = {}

    def watch(self, job: Job) -> None:
        """A request waits with nothing computed."""
        self._stale[job.index] = job
        for node in self._changed.list_shared(job.path):
            self._watchers.setdefault(node, {})[job.index] = job

    def forget(self, job: Job) -> None:
        """A request waits no longer."""
        self._stale.pop(job.index, None)
        for node in self._changed.list_shared(job.path):
            self._watchers.get(node, {}).pop(job.index, None)

    def mark(self, index: int) -> None:
        """More of a request is at hand, if it waits."""
        job = self._waiting.find(index)
        if job is not None:
            self._stale[index] = job

    def refresh(self) -> None:
        """Match and predict all whose cached prefix may be another one."""
        for node in self._changed.take():
            self._stale.update(self._watchers.get(node, {}))
        for job in self._stale.values():
            if job.stage is Stage.WAITING:
                self._kv.rematch(job)
                self._waiting.predict(job, self._predictor.predict_service_s(job))
        self._stale.clear()

    def predict(self, job: Job) -> None:
        """A half-done prompt is a chunk further."""
        self._waiting.predict(job, self._predictor.predict_service_s(job))
