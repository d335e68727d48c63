"""How much the agreement benchmark measures at each scale, and about how long that takes."""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec

from bana.eval.bench.fixture import FIXTURE
from bana.eval.bench.harness import Scale
from bana.eval.bench.placement import plan_router_placement
from bana.eval.bench.slo.grid import Grid
from bana.eval.bench.slo.settings import (
    AROUND_POINT_S,
    BUDGET_POLICIES,
    BURSTY,
    CONVERSATION,
    ISOLATED_S,
    QUICK_CONVERSATION,
    START_S,
    TUNED,
    WARM_UP_S,
    PromiseSettings,
    SloWorkload,
)
from bana.eval.bench.slo.workloads import find_trace, name_source
from bana.eval.simulator.engine_spec import EngineSpec

# What of an engine only bana knows; the simulator's own defaults, so that both decide with them.
_OWN = EngineSpec(kv_tokens=1)
DECISION_LOG_BYTES = 2**28
# Seconds of a slow machine for the few answers that tell its pace.
PACE_S = 8.0
# The engine tells in its decision log how long it believes its steps to take.
LOGGED_POLICIES = (
    *BUDGET_POLICIES,
    f"scheduling.head_rows={_OWN.head_rows}",
    f"scheduling.max_started={_OWN.max_half_done}",
    f"scheduling.decision_log_bytes={DECISION_LOG_BYTES}",
)


class AgreementSettings(PromiseSettings, frozen=True, kw_only=True):
    """One scale. The fit is taken at `fit_load` times the capacity that was searched before it, and
    each judged point `repeats` times.

    Attainment is judged where it lies from `low_attainment` to `high_attainment` live: beyond,
    everything or nothing is met and any simulation would agree.
    """

    fit_load: float = 1.0
    repeats: int = 2
    low_attainment: float = 0.5
    high_attainment: float = 0.95


# Up to where a live side meets less than is judged, and beyond while it meets more.
GRID = Grid((0.75, 1.0, 1.35), target=0.95, give_up=0.5, more_below=0, more_above=2)
DEFAULT = AgreementSettings(
    workloads=(SloWorkload("conversation", CONVERSATION, 1.0, 0.25, 4.0, GRID),),
    stock_orders=(TUNED,),
    seeds=2,
    requests=40,
    warmup_requests=3,
    search_points=3,
)
QUICK = AgreementSettings(
    workloads=(QUICK_CONVERSATION,),
    stock_orders=(TUNED,),
    seeds=1,
    requests=12,
    repeats=1,
    warmup_requests=2,
    search_points=1,
    model=FIXTURE,
    side_bytes=2_500_000_000,
    first_token_id=100,
    last_token_id=700,
    max_input_tokens=512,
    drain_s=10.0,
    # A smoke runs beside anything; it is to end, not to judge.
    lateness_limit_ms=60_000.0,
)
FULL = msgspec.structs.replace(
    DEFAULT,
    workloads=(
        *DEFAULT.workloads,
        SloWorkload("bursty", BURSTY, 0.75, 0.2, 3.0, GRID),
    ),
    seeds=4,
    requests=80,
    search_points=5,
)
SCALES = {Scale.QUICK: QUICK, Scale.DEFAULT: DEFAULT, Scale.FULL: FULL}


def estimate_minutes(settings: AgreementSettings) -> float:
    """About how long a run takes where the capacity is the rate at which its search begins, and
    each side is offered all loads.
    """
    sides = 1 + len(settings.stock_orders)
    seconds = sides * START_S
    for workload in settings.workloads:
        base_s = settings.requests / workload.start_rps
        seconds += (1 + sides) * ISOLATED_S + sides * WARM_UP_S
        seconds += settings.search_points * (base_s + AROUND_POINT_S)
        seconds += base_s / settings.fit_load + AROUND_POINT_S
        runs = sides * settings.seeds * settings.repeats
        judged = [base_s / load for load in workload.grid.multiples]
        seconds += runs * sum(load_s + AROUND_POINT_S + PACE_S for load_s in judged)
    return seconds / 60


def describe_agreement_settings(scale: Scale) -> Mapping[str, object]:
    """The settings as they stand in the report."""
    settings = SCALES[scale]
    described: dict[str, object] = msgspec.to_builtins(settings)
    return described | {
        "policies": LOGGED_POLICIES,
        "sources": {
            w.name: name_source(w.shape, find_trace(w.shape, os.environ))
            for w in settings.workloads
        },
        "placement": plan_router_placement().describe(),
        "promise": "10x the isolated TTFT of the prompt's length, 5x the isolated TPOT; measured "
        "once on the idle budget side, the same milliseconds live and simulated, for both sides",
        "fitted": "step times as the engine believed them, in the mean of one run of a seed that "
        "is not judged; of each idle side what a step and an answer take beyond them",
        "pace": "before each judged run a few single requests tell how fast the machine is now; "
        "the twin is as much slower or faster as they are than after the fit",
        "judged": "other seeds, at multiples of what the budget side's twin carries of each, which "
        "are fixed before the seed is offered live; the sides take turns; means over the runs of a "
        "point",
        "stock": "SGLang's scheduler with its defaults, addressed directly; the step times are "
        "those that the budget side measured",
    }
