"""How fast the tiers are made here, and with which configuration a step is launched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from bana.eval.bench.kvstream.settings import PAGE_TOKENS, KvStreamSettings
from bana.eval.bench.kvstream.steps import STOCK, StepPlan, Writes

Tree = dict[str, dict[str, object]]
# As in the writer's defaults, a page is given up after ten times the wait.
GIVE_UP_FACTOR = 10.0
LONG_S = 600.0
NO_LIMITS = {"rank": 0, "ttft_ms": LONG_S * 1e3, "tpot_ms": 60_000.0}


class Seen(msgspec.Struct, frozen=True):
    """What filling the tiers has shown: computing a document takes so long, a page has so much."""

    prefill_s: float
    page_bytes: int


class TierSpeed(msgspec.Struct, frozen=True):
    """A tier's throttle."""

    bandwidth_bytes_per_s: float
    latency_s: float


def plan_tiers(settings: KvStreamSettings, seen: Seen) -> tuple[TierSpeed, ...]:
    """As fast as makes fetching worth while, and what requests wait for, on this machine."""
    document_bytes = settings.document_pages * seen.page_bytes
    first = document_bytes / (settings.fetch_share * seen.prefill_s)
    return tuple(
        TierSpeed(first * share, settings.latency_share * seen.page_bytes / (first * share))
        for share in settings.tier_speeds
    )


def configure_filler(settings: KvStreamSettings, folders: Sequence[Path]) -> Tree:
    """A store that writes everything everywhere, as fast as it can."""
    tiers = [_describe_tier(settings, folder) for folder in folders]
    store: dict[str, object] = {
        "enabled": True,
        "placement": "all",
        "writer_options": {"give_up_s": LONG_S},
        "tiers": tiers,
    }
    return {**_describe_engine(STOCK), "store": store}


def configure_step(
    step: StepPlan, settings: KvStreamSettings, seen: Seen, folders: Sequence[Path]
) -> Tree:
    """What the step is launched with, besides flags of SGLang."""
    if not step.tiers:
        return {**_describe_engine(step.scheduling), "store": {"enabled": False}}
    speeds = plan_tiers(settings, seen)[: step.tiers]
    tiers = [
        {
            **_describe_tier(settings, folder),
            "width": step.width,
            "throttle": msgspec.to_builtins(speed),
        }
        for folder, speed in zip(folders, speeds, strict=False)
    ]
    store: dict[str, object] = {
        "enabled": True,
        "arena_bytes": plan_arena(settings, seen),
        "reader": step.reader,
        "placement": step.placement,
        "writer_options": _describe_writes(step, settings, seen),
        "restore": step.restore,
        "restore_options": {"most_s": LONG_S} if step.restore == "always" else step.restore_options,
        "tiers": tiers,
    }
    return {**_describe_engine(step.scheduling), "store": store}


def plan_arena(settings: KvStreamSettings, seen: Seen) -> int:
    """Bytes for so many documents with their questions."""
    asked = settings.document_tokens + settings.question_tokens + settings.output_tokens
    pages = settings.arena_documents * (asked // PAGE_TOKENS + 1)
    return int(pages * (seen.page_bytes + 4096))


def list_flags(settings: KvStreamSettings) -> list[str]:
    """Flags of SGLang, the same for all steps: equal prompts are computed in equal chunks.

    In float32 answers of one step and another can be compared.
    """
    flags = {
        "--page-size": PAGE_TOKENS,
        "--max-total-tokens": settings.pool_tokens,
        "--chunked-prefill-size": settings.chunk_tokens,
        "--dtype": "float32",
    }
    return [str(word) for pair in flags.items() for word in pair]


def _describe_engine(scheduling: Mapping[str, object]) -> Tree:
    return {
        "scheduling": dict(scheduling),
        "slo": {"default_class": "patient", "classes": {"patient": NO_LIMITS}},
    }


def _describe_tier(settings: KvStreamSettings, folder: Path) -> dict[str, object]:
    return {
        "kind": "directory",
        "path": str(folder),
        "capacity_bytes": settings.tier_capacity_bytes,
        "options": {"segment_bytes": settings.segment_bytes},
    }


def _describe_writes(step: StepPlan, settings: KvStreamSettings, seen: Seen) -> Mapping[str, float]:
    """A machine whose tiers are slow has more patience, too."""
    fetch_s = settings.fetch_share * seen.prefill_s
    defer_s = max(1.0, settings.defer_documents * fetch_s)
    is_deferred = step.writes is Writes.DEFERRED
    return {"defer_s": defer_s if is_deferred else 0.0, "give_up_s": GIVE_UP_FACTOR * defer_s}
