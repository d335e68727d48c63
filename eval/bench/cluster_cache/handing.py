"""What handing a prompt to another instance adds to the time to its first token."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from bana.eval.bench.cluster_cache.points import time_ttft_s
from bana.eval.bench.cluster_cache.settings import LEAST_LOAD, ClusterCacheSettings
from bana.eval.bench.cluster_cache.sides import Doors, Served
from bana.eval.bench.errors import BenchError
from bana.eval.bench.harness import Session
from bana.eval.bench.pairs import PairPlan, Run, figure_difference
from bana.eval.bench.trials import Values
from bana.eval.requests import Offered, Prompt
from bana.slo.figures import Figure

HANDED, UNIFIED = "handed", "unified"
ROLES = {HANDED: ("prefill", "decode"), UNIFIED: ("both", "both")}
ADDED = "ttft_ms"


def measure_handoff(
    session: Session, settings: ClusterCacheSettings, fleet: Doors
) -> Mapping[str, Figure]:
    """TTFT with one instance for prompts and one for answers, less that with both for both."""
    job = HandoffJob(session, settings, fleet)
    plan = PairPlan("hand-off", HANDED, UNIFIED, settings.handoff_pairs)
    pairs = session.run_pairs(plan, job.take)
    figure = figure_difference(pairs, ADDED, session.request.seed, "ms", None)
    return {"handoff_added_ttft_ms": figure}


class HandoffJob:
    """Takes the runs; the same cluster has both sets of roles in turn."""

    def __init__(self, session: Session, settings: ClusterCacheSettings, fleet: Doors) -> None:
        self._session = session
        self._settings = settings
        self._fleet = fleet

    def take(self, run: Run) -> Values:
        """The TTFT of prompts that nobody has seen, one at a time; BenchError unless they went as
        their run says.
        """
        with self._fleet.open(LEAST_LOAD, 0) as door:
            _change_roles(door.served, ROLES[run.side])
            try:
                before = _count_sent(door.served)
                prompts = self._draw(run)
                ttft_s = time_ttft_s(self._settings, door, prompts)
                sent = _count_sent(door.served) - before
            finally:
                _change_roles(door.served, ROLES[UNIFIED])
        wanted = len(prompts) if run.side == HANDED else 0
        if sent != wanted:
            raise BenchError(f"{run.side}: {sent} prompts were handed over, expected {wanted}")
        return {ADDED: ttft_s * 1e3}

    def _draw(self, run: Run) -> list[Offered]:
        settings, contents = self._settings, self._settings.contents
        rng = Random(f"{self._session.request.seed} {run.index} {run.side}")
        return [
            Offered(
                index=number,
                due_s=0.0,
                prompt=Prompt(
                    token_ids=[
                        rng.randint(contents.low_id, contents.high_id)
                        for _ in range(settings.handoff_tokens)
                    ]
                ),
                prompt_tokens=settings.handoff_tokens,
                output_tokens=contents.output_tokens,
            )
            for number in range(settings.handoff_prompts)
        ]


def _change_roles(served: Served, roles: tuple[str, ...]) -> None:
    for instance, role in zip(served.read_status().instances, roles, strict=True):
        served.command("roles", "set", instance.name, role)


def _count_sent(served: Served) -> int:
    handoff = served.read_status().handoff
    return 0 if handoff is None else handoff.sent
