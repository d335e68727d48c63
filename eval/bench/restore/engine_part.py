"""The sweep on a real engine: documents that lie on one tier, each asked again and again.

fill the tier ─▶ share 1: never … no-store   share 2: no-store … never   …   ─▶ figures
                          (each: start, warm up, round 1, round 2, …)
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import msgspec

from bana.eval.bench.harness import Session
from bana.eval.bench.kvstream.bench import Tiers, join_rounds, split_rounds
from bana.eval.bench.kvstream.prompts import draw_round
from bana.eval.bench.kvstream.rounds import summarise_round
from bana.eval.bench.kvstream.scene import Seen, plan_tiers
from bana.eval.bench.kvstream.settings import KvStreamSettings
from bana.eval.bench.kvstream.stand import open_stand
from bana.eval.bench.kvstream.steps import StepPlan
from bana.eval.bench.restore.figures import SweepPoint, list_figures, require_cover
from bana.eval.bench.restore.settings import (
    FIXED,
    MEETING,
    NO_STORE,
    PLANNED,
    EngineSweep,
    RestoreSettings,
)
from bana.eval.bench.slo.grid import take_turns
from bana.eval.bench.trials import Values
from bana.slo.figures import Figure

ENGINE = "engine"
RULES = (PLANNED, MEETING, *FIXED, NO_STORE)
PLANNERS = (PLANNED, MEETING)
# Served first come, first served in SGLang's chunks, by engines that know what computing costs.
PRICED: Mapping[str, object] = {"order": "fcfs", "governor": "prefill_first"}
TTFT = "ttft_mean_s"


def measure_engine(session: Session, settings: RestoreSettings) -> Mapping[str, Figure]:
    """The figures of this part."""
    with open_stand(session, settings.engine.stand) as stand:
        return measure_rules(session, settings, stand)


def measure_rules(
    session: Session, settings: RestoreSettings, tiers: Tiers
) -> Mapping[str, Figure]:
    """Take every rule at every bandwidth, each start of a rule as a trial."""
    filled = session.run_trial("documents", tiers.fill)
    seen = Seen(filled["prefill_s"], int(filled["page_bytes"]))
    sweep = EngineSweepRun(session, settings.engine, tiers, seen)
    shares = settings.engine.fetch_shares
    points = [sweep.take_point(turn, share) for turn, share in enumerate(shares)]
    if settings.covers:
        require_cover(points, settings.least_loss)
    session.notes["engine"] = {
        "document_prefill_s": seen.prefill_s,
        "bytes_per_s": {
            point.row: find_bytes_per_s(settings.engine, seen, share)
            for point, share in zip(points, shares, strict=True)
        },
        "ttft_s": {point.row: point.ttft_s for point in points},
    }
    return dict(list_figures(ENGINE, points, session.request.seed))


class EngineSweepRun(msgspec.Struct, frozen=True):
    """Takes the points; all rules at one bandwidth follow each other, in an order that turns."""

    session: Session
    sweep: EngineSweep
    tiers: Tiers
    seen: Seen

    def take_point(self, turn: int, share: float) -> SweepPoint:
        """All rules where the tier brings a document in that share of computing it."""
        settings = msgspec.structs.replace(self.sweep.stand, fetch_share=share)
        ttft_s = {}
        for rule in take_turns(list(RULES), turn):
            name = f"engine, fetching takes {share:g} of computing, {rule}"
            values = self.session.run_trial(name, partial(self._take_rounds, rule, settings))
            ttft_s[rule] = [taken[TTFT] for taken in split_rounds(values)]
        return SweepPoint(f"{settings.concurrency} at a time", f"fetch {share:g}x", ttft_s)

    def _take_rounds(self, rule: str, settings: KvStreamSettings) -> Values:
        """What all rounds of a rule gave, as one flat record."""
        with self.tiers.open(plan_rule(rule), self.seen, settings) as server:
            rounds = []
            for number in range(settings.rounds):
                where = f"restore round {number}"
                seed = self.session.request.seed
                prompts = draw_round(settings, self.tiers.documents, seed, where)
                rounds.append(summarise_round(settings, server.ask(prompts, settings.concurrency)))
                server.empty()
            server.require_sound()
            if rule in PLANNERS:
                server.require_priced()
        return join_rounds(rounds)


def find_bytes_per_s(sweep: EngineSweep, seen: Seen, share: float) -> float:
    """How fast a tier is that brings a document in that share of computing it."""
    settings = msgspec.structs.replace(sweep.stand, fetch_share=share)
    return plan_tiers(settings, seen)[0].bandwidth_bytes_per_s


def plan_rule(rule: str) -> StepPlan:
    """One tier under a rule; without a store none."""
    plan = StepPlan(name=rule, tiers=1, restore=rule, scheduling=PRICED)
    if rule == NO_STORE:
        return msgspec.structs.replace(plan, tiers=0)
    if rule == MEETING:
        return msgspec.structs.replace(plan, restore=PLANNED, restore_options={"meet": True})
    return plan
