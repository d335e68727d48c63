"""SGLang's scheduling loop around a pool of numbered pages: no model, no process, no clock."""

from __future__ import annotations

import dataclasses
from collections import Counter, deque
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from sglang.srt.disaggregation.utils import DisaggregationMode
from sglang.srt.managers.io_struct import AbortReq
from sglang.srt.managers.schedule_batch import FINISH_ABORT, Req, ScheduleBatch
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

from bana.slo.admission import Accept
from bana.slo.limits import SloAsk, resolve_slo
from bana.slo.steps import StepModel, StepShape
from sglang_bana.config import EngineConfig, InstanceSpec, SchedulingConfig, SloConfig
from sglang_bana.engine.scheduler import BanaScheduler
from sglang_bana.engine.scheduling.building import BOOT_ID_FILE
from sglang_bana.engine.scheduling.conductor import Conductor, Terms
from sglang_bana.engine.scheduling.counts import PassCounts
from sglang_bana.engine.scheduling.panel import Panel
from sglang_bana.engine.scheduling.step_learner import StepLearner
from sglang_bana.policies import Policies

from .fake_batch import FakeBatch, commit, compute
from .fake_pool import FakePool, FakeRows, FakeTree

BOOT_ID = BOOT_ID_FILE.read_text(encoding="ascii").strip()
START_S = 1000.0
# What a step of these engines takes.
SPEED = StepModel(0.01, 0.001, 0.0, 0.01, 0.001, 0.0)
POLICIES = SchedulingConfig(order="budget", governor="tpot")


class Clock:
    """Stands still until it is told otherwise."""

    def __init__(self) -> None:
        self.now_s = START_S

    def monotonic(self) -> float:
        return self.now_s


# The only time that engines see.
CLOCK = Clock()


@dataclasses.dataclass(frozen=True)
class Setup:
    """One engine. The pool holds `pages`, a chunk `chunk_tokens`, and `rows` requests run."""

    pages: int = 64
    page_size: int = 4
    rows: int = 16
    chunk_tokens: int | None = 16
    is_overlapping: bool = False
    is_mixing: bool = False
    tp_size: int = 1
    scheduling: SchedulingConfig = POLICIES

    def spec(self) -> InstanceSpec:
        return InstanceSpec(
            name="i0",
            engine=EngineConfig(),
            secret="s",
            load_endpoint="ipc://none",
            parent_pid=1,
            run_dir="",
            scheduling=self.scheduling,
        )


class FakeScheduler(Scheduler):
    """What SGLang's scheduler holds while it decides, and nothing else."""

    device = "cpu"
    max_prefill_tokens = 4096
    max_running_requests = 64
    max_queued_requests: int | None = None
    schedule_policy = "fcfs"
    processed_tokens_counter = 0
    priority_scheduling_preemption_threshold = 0
    disaggregation_mode = DisaggregationMode.NULL
    spec_algorithm = SpeculativeAlgorithm.NONE
    prefill_decode_interval = prefill_decode_interval_min_bs = 0
    enable_hierarchical_cache = enable_hicache_storage = enable_lmcache = False
    enable_priority_scheduling = schedule_low_priority_values_first = False
    abort_on_priority_when_disabled = enable_unified_cache_external_linker = False
    enable_hisparse = enable_lora = is_hybrid_swa = require_mlp_sync = False
    enable_continuous_input_polling = _engine_paused = False
    dllm_config = truncation_align_size = dynamic_chunk_sizer = hisparse_coordinator = None
    min_free_slots_delayer = decode_offload_manager = mm_receiver = rust_server = None
    scheduler_stage_metrics = idle_sleeper = None
    _prefill_decode_interval_remaining = 0

    def __init__(self, setup: Setup, port_args: None) -> None:
        self.setup = setup
        self.page_size = setup.page_size
        self.chunked_prefill_size = setup.chunk_tokens
        self.enable_overlap = self.enable_skip_finishing_decode = setup.is_overlapping
        self.is_mixed_chunk = setup.is_mixing
        self.tp_size = setup.tp_size
        self.max_total_num_tokens = setup.pages * setup.page_size
        self.token_to_kv_pool_allocator = FakePool(setup.pages, setup.page_size)
        self.req_to_token_pool = FakeRows(setup.rows)
        self.tree_cache = FakeTree(self.token_to_kv_pool_allocator, self.req_to_token_pool)
        self.waiting_queue: list[Req] = []
        self.chunked_req = self._pending_chunked_abort_req = None
        self.running_batch: ScheduleBatch = FakeBatch(reqs=[])
        self.last_batch: ScheduleBatch | None = None
        self.result_queue: deque[tuple[ScheduleBatch, list[int]]] = deque()
        self.aborted: list[AbortReq] = []
        self.computed: Counter[str] = Counter()
        # Whose KV does not land in the next step that computes their prompt.
        self.failing: set[str] = set()
        self.refusals: Iterator[bool] = iter(())
        self.tries = 0
        self._stand_in()
        self.init_schedule_policy()

    def _stand_in(self) -> None:
        """For the parts that scheduling only passes by."""
        unchanged = SimpleNamespace(
            maybe_prepare_mlp_sync_batch=lambda batch, need_sync=None: batch,
            maybe_convert_decode_to_extend=lambda batch: batch,
            prepare_for_forward=lambda batch, chunked_req: batch,
        )
        self.dp_attn_adapter = self.ngram_embedding_manager = unchanged
        self.dllm_manager = SimpleNamespace(any_staging_reqs=lambda: False)
        self.grammar_manager = SimpleNamespace(
            has_waiting_grammars=lambda: False, abort_requests=lambda _: None, grammar_queue=[]
        )
        self.beam_coordinator = SimpleNamespace(
            pending_member_rows=lambda _: 0, retire_group=lambda _: None
        )
        runner = SimpleNamespace(attn_backend=None, prefill_aware_swa=False)
        self.tp_worker = SimpleNamespace(model_runner=runner)
        self.load_inquirer = SimpleNamespace(_get_num_pending_tokens=lambda **_: 0)
        self.metrics_reporter = SimpleNamespace(num_retracted_reqs=0, enable_metrics=False)
        self.model_config = SimpleNamespace(vocab_size=1 << 30)

    def _process_hicache_events(self) -> None:
        """There is no hierarchy of caches."""

    def send_abort_output(self, abort_req: AbortReq, req: Req) -> None:
        self.aborted.append(abort_req)

    def process_input_requests(self, recv_reqs: list[Any]) -> None:
        for received in recv_reqs:
            if isinstance(received, AbortReq):
                self.abort_request(received)
            else:
                self._add_request_to_queue(received)

    def _get_new_batch_prefill_raw(
        self, prefill_delayer_single_pass: Any, running_batch: Any
    ) -> tuple[Any, Any]:
        """SGLang's own admission, which finds no room where a test says so."""
        self.tries += 1
        if next(self.refusals, False):
            return None, running_batch
        return super()._get_new_batch_prefill_raw(prefill_delayer_single_pass, running_batch)

    def run_batch(self, batch: ScheduleBatch) -> list[int]:
        if batch.forward_mode.is_extend():
            prompts = len(batch.reqs) - len(batch.decoding_reqs or ())
            for req, tokens in zip(batch.reqs[:prompts], batch.extend_lens, strict=False):
                self.computed[req.rid] += tokens
            self._fail_loads(batch)
        CLOCK.now_s += SPEED.estimate_step_s(shape_of(batch))
        return compute(batch)

    def _fail_loads(self, batch: ScheduleBatch) -> None:
        """As SGLang marks requests whose KV was not loaded."""
        for req in batch.reqs:
            if req.rid in self.failing and req.kv.cache_protected_len == req.prefix_len:
                self.failing.remove(req.rid)
                req.skip_radix_cache_insert = True
                req.discard_output_reason = FINISH_ABORT("External KV cache load failed")
                if req is self.chunked_req:
                    self._pending_chunked_abort_req = req

    def process_batch_result(self, batch: ScheduleBatch, result: list[int]) -> None:
        commit(batch, result, self.tree_cache)

    def is_fully_idle(self, for_health_check: bool = False, ignore_waiting: bool = False) -> bool:
        waits = self.waiting_queue and not ignore_waiting
        busy = self.last_batch is not None or self.chunked_req is not None or self.result_queue
        return not waits and not busy and self.running_batch.is_empty()

    def on_idle(self) -> None:
        CLOCK.now_s += 0.001

    def flush_cache(self, empty_cache: bool = True) -> bool:
        if not self.is_fully_idle(ignore_waiting=self._engine_paused):
            return False
        self.tree_cache.reset()
        self.token_to_kv_pool_allocator.clear()
        return True

    def step(self, *received: Any) -> list[str]:
        """One turn of SGLang's event loop, overlapped or not; who ran in it."""
        return self.turn([*self._poll_timeout_aborts(), *received])

    def turn(self, received: list[Any]) -> list[str]:
        """The same on any rank, with what rank 0 has told."""
        self.process_input_requests(received)
        plan = self.get_next_batch_to_run(self.running_batch, self.last_batch)
        self.running_batch, batch = plan.running_batch, plan.batch_to_run
        if batch:
            self.result_queue.append((batch.copy(), self.run_batch(batch)))
        if batch is None and not self.last_batch:
            self.on_idle()
        in_flight = 1 if self.enable_overlap and batch else 0
        while len(self.result_queue) > in_flight:
            self.process_batch_result(*self.result_queue.popleft())
        self.last_batch = batch
        return [] if batch is None else [req.rid for req in batch.reqs]

    def run_dry(self, most_steps: int = 3000) -> None:
        """Until nothing is left to do."""
        for _ in range(most_steps):
            waits = self.waiting_queue or self.chunked_req is not None
            if not waits and self.running_batch.is_empty() and self.last_batch is None:
                return
            self.step()
        raise AssertionError(f"still at work: {self.queue()}")

    def queue(self) -> list[str]:
        """Who waits, in order."""
        return [req.rid for req in self.waiting_queue]


class FakeEngine(BanaScheduler, FakeScheduler):
    """bana's scheduler over the stand-ins."""

    conductor: Conductor


def build_engine(order: str = "budget", governor: str = "tpot", **more: Any) -> FakeEngine:
    """An engine under these policies; `more` goes to its `SchedulingConfig` or its `Setup`."""
    known = set(SchedulingConfig.__struct_fields__)
    config = {name: more.pop(name) for name in known & set(more)}
    setup = Setup(scheduling=SchedulingConfig(order=order, governor=governor, **config), **more)
    engine = FakeEngine(setup.spec(), setup, None)
    if engine.conductor is not None:
        engine.conductor.learner = StepLearner(engine, SPEED)
    return engine


def replace_policies(engine: FakeEngine, **policies: Any) -> Conductor:
    """Let these decide in a new engine; whatever is not named is left to SGLang."""
    config = engine.setup.scheduling
    known: dict[str, Any] = {"order": None, "governor": None, "admission": Accept()}
    counts = PassCounts()
    panel = Panel(Policies(**(known | policies)), 0, counts, None)
    default = resolve_slo(SloAsk(), SloConfig().rules())
    terms = Terms(default, BOOT_ID, config.head_rows, config.max_started)
    engine.conductor = engine.policy.conductor = Conductor(engine, panel, terms, counts)
    engine.conductor.learner = StepLearner(engine, SPEED)
    return engine.conductor


def shape_of(batch: ScheduleBatch) -> StepShape:
    """As much of the shape as these engines charge for."""
    if batch.forward_mode.is_decode():
        return StepShape(decode_requests=len(batch.reqs))
    decodes = len(batch.decoding_reqs or ())
    return StepShape(prefill_tokens=sum(batch.extend_lens) - decodes, decode_requests=decodes)
