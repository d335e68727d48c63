"""How much of the sweep each scale takes, and the scene that it runs in."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from bana.eval.bench.harness import Scale
from bana.eval.bench.kvstream.settings import QUICK as KVSTREAM_QUICK
from bana.eval.bench.kvstream.settings import KvStreamSettings
from bana.eval.simulator.engine_spec import EngineSpec
from bana.eval.simulator.spec import CoefficientTimes, PolicySpec, SceneSpec
from bana.eval.simulator.store.spec import StoreSpec, TierSpec
from bana.eval.workload.spec import (
    ArrivalKind,
    ArrivalSpec,
    FamilySpec,
    LognormalLength,
    PromptSpec,
    TurnsSpec,
    WorkloadSpec,
)
from bana.slo.decisions import PolicyChoice
from bana.slo.steps import StepModel

PLANNED, NO_STORE = "planned", "no-store"
ALWAYS, NEVER = "always", "never"
# The planner, which may also compute the first pages while the others are fetched.
MEETING = "meeting"
FIXED = (ALWAYS, NEVER, "arrived", "timeout")
# SGLang's kernels of Llama-3.1-70B on four GB200, as `eval/simulator/fitting` fits them.
STEPS = StepModel(
    prefill_base_s=8.27e-3,
    prefill_token_s=2.83e-5,
    attended_token_s=5.85e-10,
    decode_base_s=8.47e-3,
    decode_request_s=1.84e-5,
    context_token_s=1.12e-8,
)
# 80 layers of 8 heads of 128 numbers of 2 bytes, for K and for V.
TOKEN_BYTES = 80 * 8 * 128 * 2 * 2
GB_PER_S = 1e9


class EngineSweep(msgspec.Struct, frozen=True):
    """The sweep on a real engine: `stand` says which documents are asked, how many at a time.

    The tier brings a document in each of `fetch_shares` of what computing it takes. Each rule is
    started once at each of them, and takes `stand.rounds` rounds.
    """

    stand: KvStreamSettings
    fetch_shares: tuple[float, ...]


class RestoreSettings(msgspec.Struct, frozen=True):
    """One scale: each load, at each bandwidth, with each of `seeds` draws of the requests.

    `loads` are requests per second by name. A step waits up to `patience_ms` for the store's answer
    to who has just asked. No policy holds for good: where `covers` is set the
    run must hold points at which `always`, and others at which `never`, loses at least
    `least_loss` to the planner. `engine` is the same on a real one.
    """

    loads: Mapping[str, float]
    bytes_per_s: tuple[float, ...]
    seeds: int
    patience_ms: float
    warmup_s: float
    window_s: float
    engine: EngineSweep
    covers: bool = True
    least_loss: float = 0.1


# Two at a time, so that somebody computes while another fetches.
ENGINE = EngineSweep(
    KvStreamSettings(
        starts=1,
        rounds=3,
        documents=6,
        document_tokens=768,
        question_tokens=32,
        concurrency=2,
        tier_speeds=(1.0,),
        # Who waits for pages may take half of it: two documents at a time.
        arena_documents=4.5,
        pool_documents=3,
    ),
    fetch_shares=(3.0, 1.5, 0.9, 0.5, 0.25),
)
SMALL_ENGINE = EngineSweep(
    msgspec.structs.replace(KVSTREAM_QUICK, tier_speeds=(1.0,), concurrency=2),
    fetch_shares=(2.0, 0.5),
)
DEFAULT = RestoreSettings(
    loads={"light": 1.0, "medium": 2.5, "heavy": 3.5},
    bytes_per_s=(1 * GB_PER_S, 3 * GB_PER_S, 6 * GB_PER_S, 10 * GB_PER_S, 30 * GB_PER_S),
    seeds=5,
    # As the engine, which waits so long for the store's answer.
    patience_ms=3.0,
    warmup_s=20.0,
    window_s=120.0,
    engine=ENGINE,
)
SCALES = {
    Scale.QUICK: msgspec.structs.replace(
        DEFAULT,
        loads={"light": 1.0},
        bytes_per_s=(1 * GB_PER_S, 10 * GB_PER_S),
        seeds=1,
        warmup_s=10.0,
        window_s=20.0,
        engine=SMALL_ENGINE,
        covers=False,
    ),
    Scale.DEFAULT: DEFAULT,
    Scale.FULL: msgspec.structs.replace(
        DEFAULT,
        bytes_per_s=tuple(g * GB_PER_S for g in (0.3, 1, 2, 3, 4.5, 6, 8, 10, 15, 30)),
        seeds=15,
        window_s=240.0,
        engine=EngineSweep(
            msgspec.structs.replace(ENGINE.stand, rounds=5),
            fetch_shares=(3.0, 2.0, 1.5, 1.2, 0.9, 0.7, 0.5, 0.35, 0.25),
        ),
    ),
}


def build_scene(settings: RestoreSettings, bytes_per_s: float) -> SceneSpec:
    """Conversations on a KV cache too small for them: most of what comes again is on a tier of that
    bandwidth alone.
    """
    rows = {name: PolicySpec(restore=PolicyChoice(name)) for name in (PLANNED, *FIXED)}
    meeting = PolicySpec(restore=PolicyChoice(PLANNED, {"meet": True}))
    return SceneSpec(
        workload=_build_workload(settings),
        engine=EngineSpec(kv_tokens=150_000, page_tokens=64, can_mix=True),
        policies={NO_STORE: PolicySpec(), MEETING: meeting, **rows},
        service=CoefficientTimes(model=STEPS),
        store=StoreSpec(
            tiers={"ssd": TierSpec(bytes_per_s=bytes_per_s)},
            token_bytes=TOKEN_BYTES,
            arena_pages=1_500,
            patience_ms=settings.patience_ms,
        ),
        drain_s=600.0,
    )


def _build_workload(settings: RestoreSettings) -> WorkloadSpec:
    return WorkloadSpec(
        arrivals=ArrivalSpec(
            kind=ArrivalKind.POISSON,
            rate_rps=1.0,
            warmup_s=settings.warmup_s,
            duration_s=settings.window_s,
        ),
        turns=TurnsSpec(
            think_s=40.0,
            low=2,
            high=8,
            new_tokens=LognormalLength(mean=600, p99=4_000, high=10_000),
        ),
        prompts=PromptSpec(
            input_tokens=LognormalLength(mean=6_000, p99=30_000, high=60_000),
            output_tokens=LognormalLength(mean=180, p99=700, high=2_000),
            ignore_eos=False,
            families=FamilySpec(count=20, shared_tokens=4_000, share=0.5, zipf=0.5),
        ),
    )


def describe_restore_settings(scale: Scale) -> Mapping[str, object]:
    """The settings as they stand in the report."""
    settings = SCALES[scale]
    described: dict[str, object] = msgspec.to_builtins(settings)
    scene = build_scene(settings, settings.bytes_per_s[0])
    return described | {
        "simulated": "synthesised conversations on one simulated instance, Llama-3.1-70B on four "
        "GB200 by fitted coefficients; one tier of each bandwidth and a small arena",
        "scene": msgspec.to_builtins(scene),
        "engine_documents": "random token ids on one throttled tier, computed by a process of "
        "their own; each round asks each one question, and some that nobody has seen",
        "fixed": FIXED,
        "no_store": "the same instance with its own prefix cache alone",
    }
