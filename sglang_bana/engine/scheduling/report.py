"""What an engine says of its scheduling: who decides, what they did, what came of it."""

from __future__ import annotations

import dataclasses

from bana.slo.wire import SchedulingReport, StepErrorReport
from sglang_bana.config import SchedulingConfig
from sglang_bana.engine.scheduling.conductor import Conductor


def report_scheduling(
    conductor: Conductor | None, config: SchedulingConfig
) -> SchedulingReport | None:
    """The numbers up to now, None where SGLang decides; any thread may ask."""
    if conductor is None:
        return None
    errors = conductor.learner.estimator.state.errors
    return SchedulingReport(
        order=config.order,
        governor=config.governor,
        admission=config.admission,
        counts=dataclasses.asdict(conductor.counts),
        classes=conductor.outcomes.report(),
        errors={
            kind: StepErrorReport(seen.observations, seen.error, seen.bias)
            for kind, seen in errors.items()
            if seen.observations
        },
        inflation=conductor.learner.tracker.inflation,
        started=conductor.effects.count_started(),
        prices=conductor.engine_prices,
    )
