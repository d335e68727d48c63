"""What each step from a plain store to ours gives to prompts that share long documents.

fill the tiers ─▶ start 1: no_store … completion   start 2: completion … no_store   …   ─▶ figures
                           (each step: warm up, round 1, round 2, …)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Protocol

import msgspec

from bana.eval.bench.closed import ClosedResult
from bana.eval.bench.harness import Bench, Session
from bana.eval.bench.kvstream.figures import describe_rounds, judge_steps
from bana.eval.bench.kvstream.prompts import Prompt, draw_round
from bana.eval.bench.kvstream.rounds import require_sources, summarise_round
from bana.eval.bench.kvstream.scene import Seen, plan_arena, plan_tiers
from bana.eval.bench.kvstream.settings import (
    SCALES,
    KvStreamSettings,
    describe_kvstream_settings,
)
from bana.eval.bench.kvstream.stand import open_stand
from bana.eval.bench.kvstream.steps import STEPS, StepPlan
from bana.eval.bench.trials import Values
from bana.slo.figures import Figure


class Server(Protocol):
    """A step that is up, as `stand.StepServer` describes."""

    def ask(self, prompts: Sequence[Prompt], concurrency: int) -> ClosedResult: ...

    def empty(self) -> None: ...

    def count_events(self) -> Values: ...

    def require_sound(self) -> None: ...

    def require_priced(self) -> None: ...


class Tiers(Protocol):
    """Tiers that hold the documents, and steps over them, as `stand.Stand` describes."""

    documents: list[Prompt]

    def fill(self) -> Values: ...

    def open(
        self, step: StepPlan, seen: Seen, settings: KvStreamSettings
    ) -> AbstractContextManager[Server]: ...


def measure_kvstream(session: Session) -> Mapping[str, Figure]:
    """All figures of this benchmark."""
    settings = SCALES[session.request.scale]
    with open_stand(session, settings) as stand:
        return measure_steps(session, settings, stand)


def measure_steps(
    session: Session, settings: KvStreamSettings, tiers: Tiers
) -> Mapping[str, Figure]:
    """Take all rounds of all steps, each start of a step as a trial."""
    filled = session.run_trial("documents", tiers.fill)
    seen = Seen(filled["prefill_s"], int(filled["page_bytes"]))
    rounds: dict[str, list[Values]] = {step.name: [] for step in STEPS}
    for start in range(settings.starts):
        for step in STEPS if start % 2 == 0 else STEPS[::-1]:
            job = StepJob(session, settings, tiers, seen)
            name = f"start {start + 1}/{settings.starts}, {step.name}"
            trial = session.run_trial(name, partial(job.take, step, start))
            rounds[step.name] += split_rounds(trial)
    session.notes["measured"] = {
        "document_prefill_s": seen.prefill_s,
        "document_bytes": settings.document_pages * seen.page_bytes,
        "arena_bytes": plan_arena(settings, seen),
        "tiers": msgspec.to_builtins(plan_tiers(settings, seen)),
        "steps": describe_rounds(rounds),
    }
    return judge_steps(rounds, session.request.seed)


class StepJob(msgspec.Struct, frozen=True):
    """Takes the rounds of one start."""

    session: Session
    settings: KvStreamSettings
    tiers: Tiers
    seen: Seen

    def take(self, step: StepPlan, start: int) -> Values:
        """What all rounds of this start gave, as one flat record."""
        with self.tiers.open(step, self.seen, self.settings) as server:
            rounds = [
                self._take_round(server, step, f"start {start} round {number}")
                for number in range(self.settings.rounds)
            ]
            server.require_sound()
        return join_rounds(rounds)

    def _take_round(self, server: Server, step: StepPlan, where: str) -> Values:
        settings, seed = self.settings, self.session.request.seed
        prompts = draw_round(settings, self.tiers.documents, seed, where)
        before = server.count_events()
        result = server.ask(prompts, settings.concurrency)
        # Writes that were put off are not done before.
        server.empty()
        events = {name: n - before[name] for name, n in server.count_events().items()}
        values = {**summarise_round(settings, result), **events}
        require_sources(settings, step, values)
        return values


def join_rounds(rounds: Sequence[Values]) -> dict[str, float]:
    """All rounds as one flat record `number/metric`, as the trial log keeps it."""
    return {f"{n}/{name}": v for n, values in enumerate(rounds) for name, v in values.items()}


def split_rounds(flat: Values) -> list[dict[str, float]]:
    """The inverse of `join_rounds`."""
    rounds: dict[int, dict[str, float]] = {}
    for key, value in flat.items():
        number, _, name = key.partition("/")
        rounds.setdefault(int(number), {})[name] = value
    return [rounds[number] for number in sorted(rounds)]


KVSTREAM = Bench(
    help="from no store to bana's, step by step: throughput and TTFT on shared long documents",
    settings=describe_kvstream_settings,
    measure=measure_kvstream,
)
