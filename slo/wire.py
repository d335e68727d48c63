"""Messages between bana's processes of one host: msgpack with typed schemas, never pickle.

An instance publishes `LoadReport`s on its ZMQ PUB socket; front door and launcher subscribe.
"""

from __future__ import annotations

import msgspec

from bana.slo.steps import EnginePrices


class EngineProof(msgspec.Struct, frozen=True):
    """What really runs in a scheduler process, told by that process itself."""

    pid: int
    scheduler_class: str
    attention_backend: str
    platform: str
    device: str
    sglang_version: str
    tp_size: int
    page_size: int


class Tally(msgspec.Struct, frozen=True):
    """How many values fell at or under each of `bounds_s`, beyond the last one, and their sum."""

    bounds_s: tuple[float, ...]
    counts: tuple[int, ...]
    sum_s: float


class ClassReport(msgspec.Struct, frozen=True):
    """What became of one SLO class's requests in one engine; numbers that only grow.

    `met` requests missed no limit; `missed` counts each limit that was missed, by name. `slack` is
    what was left of the TTFT limit beyond the predicted service when a request was admitted.
    """

    answered: int
    met: int
    missed: dict[str, int]
    demoted: int
    yielded: int
    rejected: int
    ttft: Tally
    tpot: Tally
    slack: Tally


class StepErrorReport(msgspec.Struct, frozen=True):
    """How well steps of one kind are predicted: relative, recent; see `slo/estimate.KindError`."""

    observations: int
    error: float
    bias: float


class SchedulingReport(msgspec.Struct, frozen=True):
    """Who decides in an engine's queue, what they did, and what came of it.

    `counts` only grow; their names are those of the engine's `PassCounts`. `prices` are None before
    anything was measured.
    """

    order: str
    governor: str
    admission: str
    counts: dict[str, int]
    classes: dict[str, ClassReport]
    errors: dict[str, StepErrorReport]
    inflation: float
    started: int
    prices: EnginePrices | None = None


class LinkReport(msgspec.Struct, frozen=True):
    """What the store is to one engine, told by its first rank.

    `state` is the connection's, `reason` why there is none; `namespace` tells whose pages it looks
    for and keeps, equal for those that share them. `held` requests wait for pages now;
    `is_resting` says that nothing is saved until the cache is flushed. The rest only grows:
    `counts` by the names of the engine's `LinkerCounts`, `client` by those of its client,
    `restored_pages` by place, and `tokens` of prompts, each by its one source. A token's KV has
    `token_bytes`, on all ranks together, and a page `page_tokens`. `digests` are what each rank's
    pages are named by, empty where the first one cannot know.
    """

    state: str
    reason: str
    is_resting: bool
    held: int
    wants: int
    counts: dict[str, int]
    client: dict[str, int]
    restored_pages: dict[str, int]
    tokens: dict[str, int]
    token_bytes: float = 0.0
    namespace: str = ""
    page_tokens: int = 0
    digests: tuple[str, ...] = ()


class LoadReport(msgspec.Struct, frozen=True, tag="load"):
    """What one instance is doing, at `time_s` on CLOCK_MONOTONIC.

    Sent by a thread of rank 0's scheduler process, so that it arrives while a long step runs and
    stops when the process is stopped. `last_pass_s` is when the scheduler loop last passed.
    Counts of requests and tokens are those of that pass; `*_total` counters only grow within one
    process life, which `epoch` (the process's start in ns) names.
    `proof` is None for an attached server, which cannot give one, `scheduling` where SGLang's own
    policies decide, `store` where there is none.
    """

    instance: str
    epoch: int
    sequence: int
    time_s: float
    last_pass_s: float
    running_requests: int
    waiting_requests: int
    waiting_uncached_tokens: int
    prefilling_tokens: int
    used_tokens: int
    capacity_tokens: int
    prefill_tokens_total: int
    decode_tokens_total: int
    proof: EngineProof | None = None
    scheduling: SchedulingReport | None = None
    store: LinkReport | None = None


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(LoadReport)


def encode_load(report: LoadReport) -> bytes:
    """One message, complete in itself."""
    return _ENCODER.encode(report)


def decode_load(message: bytes) -> LoadReport:
    """The report in `message`; msgspec.MsgspecError when it is not one."""
    return _DECODER.decode(message)
