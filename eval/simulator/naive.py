"""The oracle of the simulator: an engine without any shortcut, first come, first served.

Every request, token and page is looked at in every step. It knows only what stock SGLang does:
prompts first or mixed steps, one cut prompt at a time, retraction. It evicts nothing: with a prefix
cache it takes the KV to be ample. Use it on a handful of requests.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Sequence

from bana.eval.requests import Offered
from bana.eval.simulator.engine_spec import EngineSpec
from bana.slo.steps import StepModel, StepShape


class Steps(enum.Enum):
    """What a step with prompts does for those that decode."""

    PROMPTS_FIRST = "prompts_first"
    MIXED = "mixed"


@dataclasses.dataclass(eq=False)
class Naive:
    """One request: `kv` are the tokens that are in the cache, `times_s` when tokens came."""

    offered: Offered
    kv: int = 0
    times_s: list[float] = dataclasses.field(default_factory=list)
    is_cut: bool = False

    @property
    def ids(self) -> list[int]:
        return list(self.offered.prompt.token_ids or ())

    @property
    def target(self) -> int:
        return self.offered.prompt_tokens + len(self.times_s)

    @property
    def left(self) -> int:
        return self.offered.output_tokens - len(self.times_s)


class NaiveEngine:
    """Serves one workload."""

    def __init__(self, engine: EngineSpec, model: StepModel, steps: Steps) -> None:
        self._engine = engine
        self._model = model
        self._mixes = steps is Steps.MIXED
        self._page = engine.page_tokens
        self._ratio = engine.output_ratio.initial
        self._cached: set[tuple[int, ...]] = set()
        self._is_full = False
        self._queue: list[Naive] = []
        self._running: list[Naive] = []

    def serve(self, requests: Sequence[Offered]) -> list[list[float]]:
        """When the tokens of each request came."""
        everybody = [Naive(offered) for offered in requests]
        coming, now_s = list(everybody), 0.0
        while coming or self._queue or self._running:
            while coming and coming[0].offered.due_s <= now_s:
                self._queue.append(coming.pop(0))
                self._is_full = False
            if not self._queue and not self._running:
                now_s = coming[0].offered.due_s
                continue
            now_s = self._step(now_s)
        return [one.times_s for one in everybody]

    def _step(self, now_s: float) -> float:
        portions = [] if self._is_full else self._fill()
        # As SGLang does: nobody is tried again before something has come or gone.
        self._is_full = not portions
        decodes = list(self._running) if not portions or self._mixes else []
        taken = sum(self._pages(n.kv + tokens) - self._pages(n.kv) for n, tokens in portions)
        if portions and not self._fits(decodes, taken):
            decodes = []
        if not portions:
            self._retract()
            decodes = list(self._running)
        assert portions or decodes, "nobody can go on"
        end_s = now_s + self._time(portions, decodes)
        for one in decodes:
            one.kv += 1
            one.times_s.append(end_s)
        for one, tokens in portions:
            one.kv += tokens
            self._publish(one)
            one.is_cut = one.kv < one.target
            if not one.is_cut:
                one.times_s.append(end_s)
                self._queue.remove(one)
                self._running.append(one)
        for one in [r for r in self._running if not r.left]:
            self._running.remove(one)
            one.kv = 0
            self._is_full = False
        return end_s

    def _fill(self) -> list[tuple[Naive, int]]:
        portions: list[tuple[Naive, int]] = []
        left = self._engine.chunk_tokens
        for one in sorted(self._queue, key=lambda n: (not n.is_cut, n.offered.index)):
            begin = one.kv if one.is_cut else self._match(one)
            if not one.is_cut and not self._admits(one, begin, portions):
                break
            tokens = min(one.target - begin, left)
            if tokens < one.target - begin:
                tokens = (begin + tokens) // self._page * self._page - begin
            if tokens <= 0:
                break
            if not one.is_cut:
                one.kv = begin
            portions.append((one, tokens))
            left -= self._pages(tokens) * self._page
        return portions

    def _admits(self, one: Naive, begin: int, portions: list[tuple[Naive, int]]) -> bool:
        cut = [n for n in self._queue if n.is_cut]
        new = [n for n, _ in portions if not n.is_cut]
        if len(self._running) + len(cut) + len(new) >= self._engine.max_running:
            return False
        reserved = sum(self._expected(n) for n in self._running)
        reserved += sum(n.target - n.kv + self._expected(n) for n in cut)
        reserved += sum(n.target - n.kv + self._expected(n) + self._page for n in new)
        free = self._engine.kv_pages - self._held_pages()
        return one.target - begin + self._expected(one) + self._page <= free * self._page - reserved

    def _expected(self, one: Naive) -> float:
        return one.left * (1.0 if one.offered.ignore_eos else self._ratio)

    def _match(self, one: Naive) -> int:
        if not self._engine.has_prefix_cache:
            return 0
        pages = 0
        while (
            tuple(one.ids[: (pages + 1) * self._page]) in self._cached
            and (pages + 1) * self._page < one.target
            and (pages + 1) * self._page <= len(one.ids)
        ):
            pages += 1
        return pages * self._page

    def _publish(self, one: Naive) -> None:
        if not self._engine.has_prefix_cache:
            return
        for page in range(min(one.kv, len(one.ids)) // self._page):
            self._cached.add(tuple(one.ids[: (page + 1) * self._page]))

    def _pages(self, tokens: int) -> int:
        return math.ceil(tokens / self._page)

    def _held_pages(self) -> int:
        """Of all that run or are cut; without a prefix cache nobody shares."""
        if self._engine.has_prefix_cache:
            return 0
        return sum(self._pages(n.kv) for n in (*self._running, *self._queue))

    def _fits(self, decodes: Sequence[Naive], taken: int = 0) -> bool:
        new = sum(n.kv % self._page == 0 for n in decodes)
        return self._held_pages() + taken + new <= self._engine.kv_pages

    def _retract(self) -> None:
        spec = self._engine.output_ratio
        if self._fits(self._running):
            fall = (spec.initial - spec.lowest) / spec.decay_steps
            self._ratio = max(self._ratio - fall, spec.lowest)
            return
        while len(self._running) > 1 and not self._fits(self._running):
            worst = min(self._running, key=self._retraction_key)
            self._running.remove(worst)
            worst.kv = 0
            self._is_full = False
            self._queue.append(worst)
        had = sum(len(n.times_s) + spec.ahead_steps for n in self._running)
        limit = sum(n.offered.output_tokens for n in self._running)
        self._ratio = min(1.0, had / (limit + 1))

    def _retraction_key(self, one: Naive) -> tuple[int, int, int]:
        return len(one.times_s), -one.offered.prompt_tokens, -self._running.index(one)

    def _time(self, portions: Sequence[tuple[Naive, int]], decodes: Sequence[Naive]) -> float:
        seen = sum(n.kv + place + 1 for n, tokens in portions for place in range(tokens))
        shape = StepShape(
            prefill_tokens=sum(tokens for _, tokens in portions),
            attended_tokens=seen,
            decode_requests=len(decodes),
            context_tokens=sum(n.target for n in decodes),
        )
        return self._model.estimate_step_s(shape)
