"""A stand for the conductor: a long queue of SGLang's own requests, without a model or a server.

SGLang's parts are real where a pass touches them: requests, prefix cache, queue order. What a
scheduler has beside them, attributes that are only read, stands in.
"""

from __future__ import annotations

import time
from array import array
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from types import SimpleNamespace
from typing import Any

from sglang.srt.managers.schedule_batch import Req
from sglang.srt.managers.schedule_policy import SchedulePolicy
from sglang.srt.mem_cache.radix_cache import RadixCache
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.sampling.sampling_params import SamplingParams

from bana.slo.budget import Budget
from bana.slo.limits import Slo
from bana.slo.steps import StepModel, StepShape, count_attended
from sglang_bana.config import SchedulingConfig
from sglang_bana.engine.scheduling.conductor import Conductor, Terms
from sglang_bana.engine.scheduling.counts import PassCounts
from sglang_bana.engine.scheduling.panel import Panel
from sglang_bana.engine.scheduling.waiting_room import Standing
from sglang_bana.policies import build_policies

PAGE = 16
CHUNK_TOKENS = 2_048
BOOT_ID = "stand"
DECODING = 16
DECODING_TOKENS = 512
# An engine that computes some 8,000 prompt tokens a second.
MODEL = StepModel(
    prefill_base_s=0.004,
    prefill_token_s=1.2e-4,
    attended_token_s=1e-9,
    decode_base_s=0.012,
    decode_request_s=1e-4,
    context_token_s=1e-8,
)
LEARNING_STEPS = 64
DECODE_STEP = SimpleNamespace(forward_mode=ForwardMode.DECODE, decoding_reqs=None)
# Who is on time has hours; who is late was due long before the present.
ON_TIME_TTFT_S = (20_000.0, 40_000.0)
LATE_TTFT_S = (1.0, 10.0)
WAITED_S = 60.0


class Pressure(StrEnum):
    """What a pass meets: nobody late; all late for the first time; all late since long."""

    ON_TIME = "on time"
    TURNING_LATE = "turning late"
    LATE = "late"


@dataclass(frozen=True)
class QueuePlan:
    """What a stand is built from."""

    order: str
    pressure: Pressure
    requests: int


class SchedulingStand:
    """One queue, which bana's conductor and SGLang's own order plan in turn."""

    def __init__(self, plan: QueuePlan, seed: int) -> None:
        self._plan = plan
        self._rng = Random(seed)
        tree = RadixCache.create_simulated(page_size=PAGE)
        self.scheduler = SimpleNamespace(
            waiting_queue=[],
            held_out=(),
            chunked_req=None,
            chunked_prefill_size=CHUNK_TOKENS,
            max_prefill_tokens=CHUNK_TOKENS,
            max_total_num_tokens=1_000_000,
            max_running_requests=256,
            page_size=PAGE,
            truncation_align_size=None,
            is_mixed_chunk=False,
            is_hybrid_swa=False,
            device="cpu",
            tree_cache=tree,
            _pending_chunked_abort_req=None,
        )
        self._stock = SchedulePolicy("fcfs", tree, False, False, False)
        is_late = plan.pressure is not Pressure.ON_TIME
        due = LATE_TTFT_S if is_late else ON_TIME_TTFT_S
        self._arrived = [
            make_request(self._rng, index, self._rng.uniform(*due))
            for index in range(plan.requests)
        ]
        self._running = SimpleNamespace(
            batch_is_full=False,
            is_empty=lambda: False,
            reqs=[make_decoding(index) for index in range(DECODING)],
        )
        self.conductor = self._seat_all()

    def time_bana_ms(self) -> float:
        """One pass: what rank 0 measured, the plan, and the queue in its order."""
        if self._plan.pressure is Pressure.TURNING_LATE:
            self.conductor = self._seat_all()
        self.scheduler.waiting_queue[:] = self._arrived
        conductor = self.conductor
        # The decodes have had their turn, so that this pass is for prompts.
        conductor.stepper.note_step(DECODE_STEP)
        start_s = time.perf_counter()
        conductor.note_inputs(conductor.learner.inputs(time.monotonic()))
        conductor.plan_pass(self._running)
        conductor.apply_plan()
        took_s = time.perf_counter() - start_s
        if conductor.plan is None or conductor.counts.faults:
            raise RuntimeError("the pass planned no prompts: it timed something else")
        return took_s * 1e3

    def time_stock_ms(self) -> float:
        """SGLang's order of the same queue, first come first served."""
        self.scheduler.waiting_queue[:] = self._arrived
        start_s = time.perf_counter()
        self._stock.calc_priority(self.scheduler.waiting_queue, self._running, 0)
        return (time.perf_counter() - start_s) * 1e3

    def _seat_all(self) -> Conductor:
        """A conductor that has just welcomed the whole queue, and has seen its engine's steps."""
        conductor = conduct(self.scheduler, self._plan.order)
        conductor.note_inputs(conductor.learner.inputs(time.monotonic()))
        self.scheduler.waiting_queue[:] = []
        for req in self._arrived:
            vars(req).pop("bana", None)
            conductor.welcome(req)
            self.scheduler.waiting_queue.append(req)
        if self._plan.pressure is Pressure.LATE:
            conductor.stepper.note_step(DECODE_STEP)
            conductor.plan_pass(self._running)
            conductor.apply_plan()
        return conductor


def make_request(rng: Random, index: int, ttft_s: float) -> Req:
    """A prompt of 64 to 2,048 tokens with a promise as the front door writes it."""
    arrival_s = time.monotonic() - WAITED_S + index * 1e-4
    promise = {
        "bana_slo_class": "standard",
        "bana_ttft_s": ttft_s,
        "bana_tpot_s": 10.0,
        "bana_arrival_s": arrival_s,
        "bana_deadline_s": arrival_s + ttft_s,
        "bana_boot_id": BOOT_ID,
    }
    tokens = array("q", [index, *range(rng.randint(63, 2_047))])
    params = SamplingParams(max_new_tokens=64, custom_params=promise)
    return Req(f"r{index}", "", tokens, params)


def make_decoding(index: int) -> Any:
    """A request that decodes under a promise that any chunk keeps."""
    standing = Standing(Budget("standard", 0.0, 1.0, 10.0), -1 - index)
    return SimpleNamespace(
        rid=f"decoding-{index}",
        seqlen=DECODING_TOKENS,
        bana=standing,
        output_ids=[0],
        sampling_params=SimpleNamespace(max_new_tokens=64, ignore_eos=False),
        finished=lambda: False,
    )


def conduct(scheduler: Any, order: str) -> Conductor:
    """A conductor for this scheduler that has seen its engine's steps."""
    config = SchedulingConfig(order=order, governor="tpot")
    terms = Terms(
        default=Slo("standard", 10.0, 10.0),
        boot_id=BOOT_ID,
        head_rows=config.head_rows,
        max_started=config.max_started,
    )
    counts = PassCounts()
    panel = Panel(build_policies(config), config.seed, counts, None)
    conductor = Conductor(scheduler, panel, terms, counts)
    for step in range(LEARNING_STEPS):
        tokens = 64 + 31 * step
        for shape in (
            StepShape(prefill_tokens=tokens, attended_tokens=count_attended(tokens, 0)),
            StepShape(decode_requests=1 + step % 32, context_tokens=256 * (1 + step)),
        ):
            conductor.learner.estimator.observe(shape, MODEL.estimate_step_s(shape))
    return conductor
