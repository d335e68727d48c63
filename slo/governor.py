"""What the next step does: how many prompt tokens, or a decode step first.

prefill chunk │ decode │ prefill chunk │ decode │ …
└── gap of every decoding request ──┘  on average kept under its TPOT limit
"""

from __future__ import annotations

import dataclasses
import math
from enum import StrEnum
from typing import Annotated, Protocol

import msgspec

from bana.slo.registry import PolicyEntry, PolicyRegistry
from bana.slo.steps import StepModel, StepShape


class StepKind(StrEnum):
    """Prompts only, decodes only, or both in one step."""

    PREFILL = "prefill"
    DECODE = "decode"
    MIXED = "mixed"


class StepView(msgspec.Struct, frozen=True):
    """The engine before a step.

    `tightest_tpot_s` is the smallest TPOT limit among decoding requests, None when none decodes;
    `spare_s` how long a step may take so that all their averages hold (see `pace`), None where
    that is not known or none of them can be held. `prefill_tokens` is the prompt work that waits,
    `prefix_tokens` the context before its first token. `decodes_since_prefill` counts the decode
    steps since the last prompt work.
    `max_chunk_tokens` bounds a step; `page_tokens` is the granularity of a chunk that does not end
    its prompt. `can_mix` says that the engine can carry both in one step now. `tightest_ttft_s` is
    the smallest TTFT limit among prompts that wait, None where that is not known.
    """

    model: StepModel
    decode_requests: int
    context_tokens: int
    tightest_tpot_s: float | None
    prefill_tokens: int
    prefix_tokens: int
    decodes_since_prefill: int
    max_chunk_tokens: int
    page_tokens: int
    can_mix: bool = False
    spare_s: float | None = None
    tightest_ttft_s: float | None = None


class StepPlan(msgspec.Struct, frozen=True):
    """What to do, and why as a low-cardinality word; `prefill_tokens` is 0 for a decode step, and
    for a prefill step only where nothing waits and nothing decodes.
    """

    kind: StepKind
    prefill_tokens: int
    reason: str


class Governor(Protocol):
    """Law: 0 <= prefill_tokens <= max_chunk_tokens; DECODE only where something decodes; prompt
    work that waits is served after a bounded number of decode steps; equal inputs, equal answers.
    """

    def decide_step(self, view: StepView) -> StepPlan: ...


@dataclasses.dataclass(frozen=True)
class TpotOptions:
    """`margin` is the share of the time that is left to running requests which a step may fill.

    A request that is ahead of its limit may be held up for longer than one gap, but at most for
    `max_gaps` of the tightest limit. A chunk is never smaller than `floor_tokens` (or what is
    left), and it waits for at most `max_decodes` decode steps.

    All whose prompts a chunk holds, or who come meanwhile, wait for its end: it takes at most
    `ttft_share` of the tightest TTFT limit, but is not made smaller than what brings the fixed
    costs of a gap, its decode step among them, down to `fixed_share`, for throughput's sake.
    """

    margin: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.92
    floor_tokens: Annotated[int, msgspec.Meta(ge=1, le=1_048_576)] = 64
    max_decodes: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 8
    max_gaps: Annotated[float, msgspec.Meta(ge=1, le=1024)] = 4.0
    ttft_share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.2
    fixed_share: Annotated[float, msgspec.Meta(gt=0, le=0.9)] = 0.2


class TpotGovernor:
    """The largest chunk that leaves running requests their TPOT (ours).

    A gap is a chunk and a decode step, or one mixed step. Tokens that came early have earned time
    for a longer one. Where not even the floor chunk fits, it follows so many decode steps that
    the average gap holds. Where that would take more than
    `max_decodes`, the limit cannot be held: prompts then get as much time as decodes do, so that
    what is lost anyhow does not stop what is not.
    """

    def __init__(self, options: TpotOptions) -> None:
        self._options = options

    def decide_step(self, view: StepView) -> StepPlan:
        cost = _ChunkCost.of(view)
        view = self._bound(view, cost)
        if view.prefill_tokens <= 0 or not view.decode_requests:
            return _decide_alone(view)
        if view.decodes_since_prefill < 1:
            return StepPlan(StepKind.DECODE, 0, "alternate")
        if view.tightest_tpot_s is None:
            return StepPlan(cost.kind, _full_chunk(view), "no_limit")
        return self._decide_shared(view, cost, view.tightest_tpot_s)

    def _bound(self, view: StepView, cost: _ChunkCost) -> StepView:
        """The same with no larger a chunk than those who wait for a first token can do with."""
        if view.tightest_ttft_s is None or not cost.token_s:
            return view
        timely = cost.find_largest(self._options.ttft_share * view.tightest_ttft_s)
        fixed_s, share = cost.decode_s + cost.base_s, self._options.fixed_share
        paying = fixed_s * (1 / share - 1) / cost.token_s
        if (bound := max(timely, paying)) >= view.max_chunk_tokens:
            return view
        most = max(math.ceil(bound), self._options.floor_tokens, view.page_tokens)
        return msgspec.structs.replace(view, max_chunk_tokens=min(most, view.max_chunk_tokens))

    def _decide_shared(self, view: StepView, cost: _ChunkCost, tpot_s: float) -> StepPlan:
        full, floor = _full_chunk(view), _floor_chunk(view, self._options.floor_tokens)
        fitting = _round_chunk(view, cost.find_largest(self._find_room_s(view, cost, tpot_s)))
        if fitting >= full:
            return StepPlan(cost.kind, full, "full")
        if fitting >= floor:
            return StepPlan(cost.kind, fitting, "tpot")
        gap_room_s = self._options.margin * tpot_s - cost.decode_s
        decodes = self._count_decodes(cost.estimate_s(floor), gap_room_s, tpot_s - cost.decode_s)
        if decodes is None:
            traded = _round_chunk(view, cost.find_largest(cost.decode_s))
            return StepPlan(cost.kind, min(max(traded, floor), full), "trade")
        # What is spare is counted, not estimated from the decode steps: wait until it suffices.
        enough = decodes if view.spare_s is None else self._options.max_decodes
        if view.decodes_since_prefill < enough:
            return StepPlan(StepKind.DECODE, 0, "average")
        return StepPlan(cost.kind, floor, "floor")

    def _find_room_s(self, view: StepView, cost: _ChunkCost, tpot_s: float) -> float:
        """How long a chunk may take before the decode step that follows it."""
        spare_s = tpot_s if view.spare_s is None else view.spare_s
        return self._options.margin * min(spare_s, self._options.max_gaps * tpot_s) - cost.decode_s

    def _count_decodes(self, chunk_s: float, room_s: float, bare_room_s: float) -> int | None:
        """Decode steps over which a chunk of `chunk_s` keeps the average gap, None if too many.

        Each decode step leaves `room_s`; the bound may use up the margin, `bare_room_s`.
        """
        most = self._options.max_decodes
        if room_s > 0 and chunk_s <= room_s * most:
            return max(1, math.ceil(chunk_s / room_s))
        return most if chunk_s <= bare_room_s * most else None


class PrefillFirst:
    """Prompts first, in full chunks, decodes when none waits: SGLang's own order."""

    def decide_step(self, view: StepView) -> StepPlan:
        if view.prefill_tokens <= 0:
            return _decide_alone(view)
        return StepPlan(StepKind.PREFILL, _full_chunk(view), "prompts")


@dataclasses.dataclass(frozen=True)
class FixedChunkOptions:
    """`decodes` is the number of decode steps after a chunk; 0 mixes where that is possible, and is
    1 elsewhere.
    """

    chunk_tokens: Annotated[int, msgspec.Meta(ge=1, le=1_048_576)] = 512
    decodes: Annotated[int, msgspec.Meta(ge=0, le=1024)] = 1


class FixedChunk:
    """Chunks of one size between a fixed number of decode steps, whatever was promised."""

    def __init__(self, options: FixedChunkOptions) -> None:
        self._options = options

    def decide_step(self, view: StepView) -> StepPlan:
        if view.prefill_tokens <= 0:
            return _decide_alone(view)
        chunk = _floor_chunk(view, self._options.chunk_tokens)
        if not view.decode_requests:
            return StepPlan(StepKind.PREFILL, chunk, "fixed")
        if view.can_mix and not self._options.decodes:
            return StepPlan(StepKind.MIXED, chunk, "fixed")
        if view.decodes_since_prefill < max(self._options.decodes, 1):
            return StepPlan(StepKind.DECODE, 0, "alternate")
        return StepPlan(StepKind.PREFILL, chunk, "fixed")


@dataclasses.dataclass(frozen=True)
class _ChunkCost:
    """What c prompt tokens add to a decode step: base + token·c + pair·c^2, in seconds."""

    kind: StepKind
    decode_s: float
    base_s: float
    token_s: float
    pair_s: float

    @classmethod
    def of(cls, view: StepView) -> _ChunkCost:
        """The cheaper of an own step and a mixed one."""
        model = view.model
        shape = StepShape(decode_requests=view.decode_requests, context_tokens=view.context_tokens)
        added_s = max(model.prefill_base_s - model.decode_base_s, 0.0)
        does_mix = view.can_mix and view.decode_requests > 0 and added_s < model.prefill_base_s
        return cls(
            kind=StepKind.MIXED if does_mix else StepKind.PREFILL,
            decode_s=model.estimate_step_s(shape),
            base_s=added_s if does_mix else model.prefill_base_s,
            token_s=model.prefill_token_s + model.attended_token_s * (view.prefix_tokens + 0.5),
            pair_s=model.attended_token_s / 2,
        )

    def estimate_s(self, tokens: int) -> float:
        """Seconds that a chunk of `tokens` adds."""
        return self.base_s + self.token_s * tokens + self.pair_s * tokens * tokens

    def find_largest(self, room_s: float) -> float:
        """The most tokens that add at most `room_s`; not whole, infinite where they are free."""
        work_s = room_s - self.base_s
        if work_s < 0:
            return 0.0
        slope_s = self.token_s + math.sqrt(self.token_s**2 + 4 * self.pair_s * work_s)
        return 2 * work_s / slope_s if slope_s > 0 else math.inf


def _decide_alone(view: StepView) -> StepPlan:
    """Where only prompts or only decodes want a step, or nothing does."""
    if view.prefill_tokens > 0:
        return StepPlan(StepKind.PREFILL, _full_chunk(view), "no_decodes")
    if view.decode_requests:
        return StepPlan(StepKind.DECODE, 0, "no_prompts")
    return StepPlan(StepKind.PREFILL, 0, "idle")


def _full_chunk(view: StepView) -> int:
    """As much as one step may take, at least one token."""
    return _floor_chunk(view, view.max_chunk_tokens)


def _floor_chunk(view: StepView, tokens: int) -> int:
    """`tokens` in whole pages, at least one; less only where a prompt or a step's bound ends."""
    pages = max(_round_chunk(view, tokens), view.page_tokens)
    return min(pages, view.prefill_tokens, view.max_chunk_tokens)


def _round_chunk(view: StepView, tokens: float) -> int:
    """At most `tokens`: all that waits, or whole pages, within a step's bound."""
    bound = min(tokens, view.prefill_tokens, view.max_chunk_tokens)
    if bound == view.prefill_tokens:
        return view.prefill_tokens
    return int(bound) // view.page_tokens * view.page_tokens


GOVERNORS: PolicyRegistry[Governor] = PolicyRegistry(
    "governor",
    {
        "tpot": PolicyEntry(TpotGovernor, TpotOptions),
        "prefill_first": PolicyEntry(lambda _: PrefillFirst()),
        "fixed_chunk": PolicyEntry(FixedChunk, FixedChunkOptions),
    },
    members=("decide_step",),
)
DEFAULT_GOVERNOR = "tpot"
