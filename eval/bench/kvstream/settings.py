"""How much the kvstream benchmark measures at each scale, and about how long that takes."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from bana.eval.bench.fixture import FIXTURE
from bana.eval.bench.harness import Scale
from bana.eval.bench.kvstream.steps import STEPS
from bana.eval.bench.placement import plan_engine_placement

PAGE_TOKENS = 16
MIB = 2**20
# Seconds on a slow machine of two cores: a start with its warm-up and its end; rounds, by what
# computing all of a round takes.
START_S = 45.0
PROMPT_TOKENS_PER_S = 500.0
STEPS_OVER_COMPUTING = 3.8


class KvStreamSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One scale. Each step is started `starts` times and takes `rounds` rounds each time.

    A round asks each of the `documents`, which lie on the tiers, one question, and one of each of
    `new_documents` that nobody has seen, `concurrency` at a time. One tier brings a document within
    `fetch_share` of what computing it takes; tier n has `tier_speeds[n - 1]` of that bandwidth, and
    answers each page `latency_share` of its own time later. Deferred writes give way for as long as
    `defer_documents` of the first tier's documents take. The arena holds `arena_documents`, SGLang
    `pool_documents`: too few for what a round asks to be there still in the next one. A round in
    which the tiers gave less than `least_restored` of what they hold is invalid.
    """

    starts: int
    rounds: int
    documents: int = 8
    new_documents: int = 2
    document_tokens: int = 2048
    question_tokens: int = 64
    output_tokens: int = 4
    concurrency: int = 3
    fetch_share: float = 0.6
    tier_speeds: tuple[float, ...] = (1.0, 0.6)
    latency_share: float = 0.25
    defer_documents: float = 2.0
    arena_documents: float = 8.0
    pool_documents: int = 4
    least_restored: float = 0.8
    warm_requests: int = 2
    warm_tokens: int = 256
    chunk_tokens: int = 512
    tier_capacity_bytes: int = 3 * 2**30
    segment_bytes: int = 64 * MIB
    side_bytes: int = 4_500_000_000
    model: str = "smollm2"
    first_token_id: int = 1_000
    last_token_id: int = 40_000
    round_timeout_s: float = 900.0
    settle_timeout_s: float = 300.0
    start_timeout_s: float = 600.0

    @property
    def document_pages(self) -> int:
        """The pages of one document."""
        return self.document_tokens // PAGE_TOKENS

    @property
    def requests(self) -> int:
        """How many a round has."""
        return self.documents + self.new_documents

    @property
    def pool_tokens(self) -> int:
        """How many tokens SGLang keeps on the device."""
        whole = self.document_tokens + self.question_tokens + self.output_tokens
        return self.pool_documents * (whole // PAGE_TOKENS + 1) * PAGE_TOKENS


DEFAULT = KvStreamSettings(starts=3, rounds=2)
QUICK = KvStreamSettings(
    starts=1,
    rounds=1,
    documents=4,
    new_documents=1,
    document_tokens=512,
    question_tokens=16,
    warm_requests=1,
    warm_tokens=64,
    tier_capacity_bytes=384 * MIB,
    segment_bytes=16 * MIB,
    side_bytes=2_500_000_000,
    model=FIXTURE,
    first_token_id=100,
    last_token_id=700,
)
FULL = msgspec.structs.replace(DEFAULT, starts=5, rounds=3)
SCALES = {Scale.QUICK: QUICK, Scale.DEFAULT: DEFAULT, Scale.FULL: FULL}


def estimate_minutes(settings: KvStreamSettings) -> float:
    """About how long a run takes on a slow machine of two cores."""
    tokens = settings.requests * (settings.document_tokens + settings.question_tokens)
    sweep_s = settings.rounds * STEPS_OVER_COMPUTING * tokens / PROMPT_TOKENS_PER_S
    fill_s = START_S + settings.documents * settings.document_tokens / PROMPT_TOKENS_PER_S
    return (fill_s + settings.starts * (len(STEPS) * START_S + sweep_s)) / 60


def describe_kvstream_settings(scale: Scale) -> Mapping[str, object]:
    """The settings as they stand in the report."""
    described: dict[str, object] = msgspec.to_builtins(SCALES[scale])
    return described | {
        "placement": plan_engine_placement().describe(),
        "steps": [msgspec.to_builtins(step) for step in STEPS],
        "tiers": "directories in the page cache behind throttles; how fast follows from what the "
        "instance takes to compute a document, measured once: see measured.tiers",
        "documents": "random token ids, computed once by a process of their own, which writes them "
        "to every tier; no step's process ever computes them",
        "rounds": "the same requests for all steps, in the same order, another question a round; "
        "SGLang's cache flushed, and what is to be written written, before each",
        "order": "one step is up at a time; the order of steps is turned round from start to start",
        "policies": "SGLang's own order and chunks; all that the store has is fetched; no limits",
        "ttft": "with so many requests out at a time, not at a rate",
    }
