"""SGLang's scheduler with a store behind its prefix cache; bana's own scheduler builds on it.

arrival: ask, hold ─▶ pass without the held ─▶ launch: whose load failed? ─▶ result: they wait again

Without a store each override is SGLang's own method.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import zmq
from sglang.srt.managers.io_struct import (
    BeginWeightUpdateReqInput,
    CheckWeightsReqInput,
    EndWeightUpdateReqInput,
    LoadLoRAAdapterFromTensorsReqInput,
    LoadLoRAAdapterReqInput,
    ReleaseMemoryOccupationReqInput,
    ResumeMemoryOccupationReqInput,
    RpcReqInput,
    UnloadLoRAAdapterReqInput,
    UpdateWeightFromDiskReqInput,
    UpdateWeightsFromDistributedReqInput,
    UpdateWeightsFromIPCReqInput,
    UpdateWeightsFromTensorReqInput,
)
from sglang.srt.managers.scheduler import Scheduler

from bana.slo.fetching import ComputeView
from bana.slo.steps import EnginePrices
from sglang_bana.config import InstanceSpec
from sglang_bana.engine.linker.building import build_restorer
from sglang_bana.engine.linker.holding import HoldsEnded, merge_back
from sglang_bana.engine.linker.promises import Promises
from sglang_bana.engine.linker.recovery import Recovery
from sglang_bana.engine.linker.restoring import Restorer
from sglang_bana.engine.linker.streamer import StoreStreamer

# All that SGLang's scheduler does with weights; a remote call may do anything.
WEIGHT_CHANGES = (
    UpdateWeightFromDiskReqInput,
    UpdateWeightsFromDistributedReqInput,
    UpdateWeightsFromTensorReqInput,
    UpdateWeightsFromIPCReqInput,
    BeginWeightUpdateReqInput,
    EndWeightUpdateReqInput,
    ResumeMemoryOccupationReqInput,
    RpcReqInput,
)
ADAPTER_CHANGES = (
    LoadLoRAAdapterReqInput,
    LoadLoRAAdapterFromTensorsReqInput,
    UnloadLoRAAdapterReqInput,
)
# SGLang's idle scheduler also looks around once a second.
LONGEST_POLL_S = 1.0


class RestoringScheduler(Scheduler):
    """Asks a store for the pages of waiting prompts, and passes over whom it is worth holding.

    `held_out` are the requests that the pass under way does not see.
    """

    restorer: Restorer | None = None
    recovery: Recovery
    held_out: Sequence[Any] = ()
    _held_late: Sequence[Any] = ()
    waiting_queue: list[Any]
    _spec: InstanceSpec
    promises: Promises

    def init_schedule_policy(self) -> None:
        super().init_schedule_policy()
        built = build_restorer(self, self._spec)
        if built is None:
            return
        self.restorer, self.promises = built
        self.recovery = Recovery(self)
        if self.idle_sleeper is not None:
            self.idle_sleeper.poller.register(self.restorer.linker.bell.fd, zmq.POLLIN)

    @property
    def engine_prices(self) -> EnginePrices | None:
        """What computing costs here now, None where nobody can tell; any thread may ask."""
        return None

    @property
    def can_meet(self) -> bool:
        """Whether computing a prompt can stop at any page."""
        return False

    def find_compute(self) -> ComputeView:
        """The same, and who waits for it."""
        return ComputeView(self.engine_prices, self.count_waiting(), self.can_meet)

    def count_waiting(self) -> int:
        """How many requests wait beside one that is held: for this engine, now or once their pages
        have come.
        """
        is_one_held = self.restorer is not None and len(self.restorer.holds) > 0
        return max(0, len(self.waiting_queue) - is_one_held)

    def get_output_streamer_class(self) -> Any:
        has_store = bool(self._spec.store_endpoint)
        return StoreStreamer if has_store else super().get_output_streamer_class()

    def _prefetch_kvcache(self, req: Any, storage_hit_end: int | None = None) -> None:
        super()._prefetch_kvcache(req, storage_hit_end)
        if self.restorer is not None:
            self.restorer.arrive(req, self._due_s(req, self.restorer))

    def _release_aborted_request(self, req: Any) -> None:
        super()._release_aborted_request(req)
        if self.restorer is not None:
            self.restorer.leave(req)

    def _poll_timeout_aborts(self) -> list[Any]:
        """Rank 0 alone: whom it holds no longer rides to all ranks with what they receive."""
        told = super()._poll_timeout_aborts()
        if self.restorer is not None and self.tp_size > 1:
            over = self.restorer.find_over()
            if over:
                told.append(self.restorer.tell_over(over))
        return told

    def process_input_requests(self, recv_reqs: list[Any]) -> None:
        if self.restorer is None:
            super().process_input_requests(recv_reqs)
            return
        self.recovery.leave_out(self.last_batch)
        requests = []
        for received in recv_reqs:
            if isinstance(received, HoldsEnded):
                self.restorer.catch_up(received)
                self._end_holds(received)
            else:
                self._foresee(received, self.restorer)
                requests.append(received)
        super().process_input_requests(requests)
        for req in self.grammar_manager.grammar_queue:
            self.restorer.expect(req, self._due_s(req, self.restorer))

    def _due_s(self, req: Any, restorer: Restorer) -> float:
        return self.promises.due_s(req, restorer.linker.clock.now_s())

    def _end_holds(self, ended: HoldsEnded) -> None:
        assert self.restorer is not None
        for req in self.restorer.end_holds(ended):
            self._note_ready(req)

    def is_held(self, req: Any) -> bool:
        """Whether the request is passed over, since pages are on their way to it."""
        return self.restorer is not None and self.restorer.holds.has(req)

    def stay_parted(self, req: Any) -> None:
        """This request has computed up to what was fetched meanwhile, and cannot leave its seat."""
        assert self.restorer is not None
        self.restorer.stay_parted(req)

    def note_met(self, req: Any) -> None:
        """This request, back in the queue, has computed up to what was fetched meanwhile."""
        assert self.restorer is not None
        self.restorer.meet(req)
        if self.is_held(req):
            # The pass under way does not see it either.
            self.waiting_queue.remove(req)
            self._held_late = (*self._held_late, req)
            self.held_out = (*self.held_out, req)

    def note_given_up(self, req: Any) -> None:
        """The device may evict what has been computed of this waiting prompt."""
        if self.restorer is not None:
            self.restorer.spill(req, self._due_s(req, self.restorer))

    def _note_ready(self, req: Any) -> None:
        """The request is passed over no longer: its pages are there, or not worth waiting for."""

    def _foresee(self, received: Any, restorer: Restorer) -> None:
        """What a request is about to do to the weights, or to the pool."""
        is_reset = isinstance(received, CheckWeightsReqInput) and "reset" in received.action
        if is_reset or isinstance(received, WEIGHT_CHANGES):
            restorer.change_weights(is_idle=self.is_fully_idle(ignore_waiting=True))
        elif isinstance(received, ADAPTER_CHANGES):
            restorer.change_adapters()
        elif isinstance(received, ReleaseMemoryOccupationReqInput):
            restorer.linker.settle()

    def get_next_batch_to_run(self, running_batch: Any, last_batch: Any) -> Any:
        restorer = self.restorer
        if restorer is None:
            return super().get_next_batch_to_run(running_batch, last_batch)
        if self.tp_size == 1:
            self._end_holds(restorer.tell_over(restorer.find_over()))
        before = self.waiting_queue
        held: Sequence[Any] = ()
        if len(restorer.holds):
            self.waiting_queue, held = restorer.holds.split(before)
            self.held_out = held
        try:
            return super().get_next_batch_to_run(running_batch, last_batch)
        finally:
            if held:
                self.waiting_queue = merge_back(before, self.waiting_queue, held)
            self.held_out = ()
            self.waiting_queue += self._held_late
            self._held_late = ()

    def run_batch(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        result = super().run_batch(batch, *args, **kwargs)
        if self.restorer is not None and batch.forward_mode.is_extend():
            self.recovery.begin(self.restorer.settle(batch))
        return result

    def process_batch_result(self, batch: Any, result: Any) -> None:
        super().process_batch_result(batch, result)
        if self.restorer is not None:
            self.restorer.finish(batch.reqs)
            for req in reversed(self.recovery.take_ended(batch)):
                self._wait_again(req)

    def _wait_again(self, req: Any) -> None:
        """First in the queue, past every limit of it: the request had been admitted."""
        self.waiting_queue.insert(0, req)

    def collect_inflight_reqs(self) -> set[Any]:
        found: set[Any] = super().collect_inflight_reqs()
        return found if self.restorer is None else found | set(self.recovery.lost)

    def on_idle(self) -> None:
        super().on_idle()
        if self.restorer is not None and self.idle_sleeper is not None:
            self._await_pages(self.restorer)

    def _await_pages(self, restorer: Restorer) -> None:
        """While all who wait are held, sleep until a page or a message comes, or a hold ends.

        SGLang would look for work without a pause.
        """
        is_held = 0 < len(restorer.holds) == len(self.waiting_queue)
        if not is_held or self.chunked_req is not None or self.grammar_manager.grammar_queue:
            return
        left_s = restorer.holds.next_end_s - restorer.linker.clock.now_s()
        if left_s > 0:
            self.idle_sleeper.poller.poll(int(min(left_s, LONGEST_POLL_S) * 1000) + 1)
