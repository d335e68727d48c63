"""How fast the idle server answers one request at a time: what multiples of it are taken of."""

from __future__ import annotations

import asyncio
import bisect
import itertools
import statistics
import time
import uuid
from collections.abc import Sequence
from random import Random

import msgspec
import numpy as np

from bana.eval.client.call import Call
from bana.eval.client.caller import Caller
from bana.eval.client.errors import LoadError
from bana.eval.client.plan import ClientPlan
from bana.eval.client.prompts import PromptMaker
from bana.eval.client.run import check_plan, open_caller, running_beside
from bana.eval.client.shapes import Shaper
from bana.eval.client.watch import Tally, Watch
from bana.eval.requests import Ending, Limits, Observed, Offered, Workload
from bana.slo.errors import ConfigError

QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)
# The first round, which meets cold code paths and compilations, is discarded.
ROUNDS = 4
OUTPUT_TOKENS = 17


class TtftPoint(msgspec.Struct, frozen=True):
    """The median TTFT of prompts of one length."""

    prompt_tokens: int
    ttft_s: float


class Isolated(msgspec.Struct, frozen=True):
    """The idle server: TTFT by prompt length, rising, and TPOT (None where none was seen)."""

    points: tuple[TtftPoint, ...]
    tpot_s: float | None
    requests: int

    def estimate_ttft(self, prompt_tokens: int) -> float:
        """Seconds for a prompt of that length: linear between points and beyond the last.

        Below the first point it is that point's, since a prompt of no tokens takes time as well.
        With one point, longer prompts take in proportion.
        """
        first = self.points[0]
        if prompt_tokens <= first.prompt_tokens:
            return first.ttft_s
        if len(self.points) == 1:
            return first.ttft_s * prompt_tokens / first.prompt_tokens
        lengths = [point.prompt_tokens for point in self.points]
        place = min(bisect.bisect_left(lengths, prompt_tokens), len(lengths) - 1)
        low, high = self.points[place - 1], self.points[place]
        share = (prompt_tokens - low.prompt_tokens) / (high.prompt_tokens - low.prompt_tokens)
        return low.ttft_s + share * (high.ttft_s - low.ttft_s)


def measure_isolated(workload: Workload, plan: ClientPlan, watch: Watch) -> Isolated:
    """Send single requests of the workload's lengths, unlike any other, one after the other.

    LoadError when the server cannot be reached or one of them is not answered.
    """
    if not workload.requests:
        raise ConfigError("the workload has no requests to take prompt lengths from")
    check_plan(workload, plan)
    return asyncio.run(_Single(workload, plan, watch).measure())


def choose_models(requests: Sequence[Offered]) -> list[Offered]:
    """The requests at QUANTILES of prompt length, each length once, shortest first."""
    by_length = sorted(requests, key=lambda r: r.prompt_tokens)
    places = np.quantile(range(len(by_length)), QUANTILES, method="nearest")
    models = {by_length[int(p)].prompt_tokens: by_length[int(p)] for p in places}
    return list(models.values())


def summarise_isolated(seen: Sequence[Observed]) -> Isolated:
    """Medians by length; a longer prompt never takes less than a shorter one."""
    by_length: dict[int, list[float]] = {}
    tpots_s = []
    for one in seen:
        assert one.sent_s is not None
        assert one.first_s is not None
        assert one.last_s is not None
        by_length.setdefault(one.prompt_tokens, []).append(one.first_s - one.sent_s)
        if one.output_tokens > 1:
            tpots_s.append((one.last_s - one.first_s) / (one.output_tokens - 1))
    lengths = sorted(by_length)
    medians = (statistics.median(by_length[length]) for length in lengths)
    rising = itertools.accumulate(medians, max)
    return Isolated(
        points=tuple(TtftPoint(n, ttft_s) for n, ttft_s in zip(lengths, rising, strict=True)),
        tpot_s=statistics.median(tpots_s) if tpots_s else None,
        requests=len(seen),
    )


class _Single:
    """One request at a time."""

    def __init__(self, workload: Workload, plan: ClientPlan, watch: Watch) -> None:
        self._run_id = uuid.uuid4().hex[:12]
        self._models = choose_models(workload.requests)
        self._prompts = PromptMaker(workload.requests, Random(self._run_id))
        self._plan = plan
        self._watch = watch
        self._shaper = Shaper(plan)
        self._over = asyncio.Event()
        self._caller = Caller(plan, lambda call: self._over.set())

    async def measure(self) -> Isolated:
        await open_caller(self._caller, self._plan)
        total = ROUNDS * len(self._models)
        seen: list[Observed] = []
        self._watch.begin("isolated latency", total)
        try:
            async with running_beside([self._caller.watch_timeouts()]):
                for model in self._models * ROUNDS:
                    seen.append(await self._ask(model, len(seen)))
                    self._watch.show(Tally(len(seen), len(seen), 0, 0.0))
        finally:
            await self._caller.close()
            self._watch.end()
        return summarise_isolated(seen[len(self._models) :])

    async def _ask(self, model: Offered, index: int) -> Observed:
        offered = msgspec.structs.replace(
            model,
            index=index,
            due_s=0.0,
            prompt=self._prompts.make_like(model.prompt),
            output_tokens=OUTPUT_TOKENS,
            limits=Limits(),
            cancel_after_s=None,
        )
        request_id = f"{self._run_id}-isolated-{index}"
        zero_s = time.monotonic()
        call = Call(zero_s, offered, request_id, self._shaper.reader())
        self._over.clear()
        self._caller.start(call, self._shaper.write(offered, request_id))
        await self._over.wait()
        seen = call.observe(zero_s)
        if seen.ending is not Ending.FINISHED:
            raise LoadError(
                f"the isolated latency cannot be measured: a single request of "
                f"{offered.prompt_tokens} prompt tokens ended {seen.ending}: {seen.error}"
            )
        return seen
