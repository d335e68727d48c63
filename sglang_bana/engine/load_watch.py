"""How much work a scheduler has, noted by its own loop once per pass.

Works for any SGLang scheduler: two methods of the *instance* are wrapped, so that bana's class
and SGLang's are observed in the same way, at the same cost.

    ingest ──▶ get_next_batch_to_run ──▶ run ──▶ process_batch_result ──▶ ingest …
                         └─ note a Load                  └─ count tokens
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Collection
from typing import Any

import msgspec

from sglang_bana.engine.stay import is_elsewhere

# Summing a request costs about 0.3 us, so this bounds the share of time spent to 0.2 %.
QUEUE_REFRESH_S_PER_REQUEST = 2e-4
# Asking the pool takes some 10 us; short steps on a GPU need not pay it every time.
USED_REFRESH_S = 0.02


class Load(msgspec.Struct, frozen=True, gc=False):
    """A scheduler's work at one pass of its loop; token counts as in `LoadReport`."""

    pass_s: float
    running_requests: int = 0
    waiting_requests: int = 0
    waiting_uncached_tokens: int = 0
    prefilling_tokens: int = 0
    used_tokens: int = 0
    prefill_tokens_total: int = 0
    decode_tokens_total: int = 0


class LoadWatch:
    """The newest `Load` of one scheduler.

    Only the scheduler's thread writes; `newest` is one reference to a frozen record, so any
    thread may read it at any time and sees one pass, never a mixture of two.
    """

    def __init__(self, scheduler: Any) -> None:
        self.newest = Load(pass_s=time.monotonic())
        self.capacity_tokens = int(scheduler.pool_stats_observer.max_total_num_tokens)
        self._scheduler = scheduler
        self._prefill_tokens_total = 0
        self._decode_tokens_total = 0
        self._queue_tokens = 0
        self._queue_length = 0
        self._queue_summed_s = 0.0
        self._used_tokens = 0
        self._used_due_s = 0.0

    def attach(self) -> None:
        """Wrap the scheduler's two methods; call once, before its loop starts."""
        plan, finish = self._scheduler.get_next_batch_to_run, self._scheduler.process_batch_result

        def get_next_batch_to_run(*args: Any, **kwargs: Any) -> Any:
            pass_s = time.monotonic()
            planned = plan(*args, **kwargs)
            self._note_pass(pass_s, planned)
            return planned

        def process_batch_result(batch: Any, result: Any) -> Any:
            self._count_tokens(batch, result)
            return finish(batch, result)

        self._scheduler.get_next_batch_to_run = get_next_batch_to_run
        self._scheduler.process_batch_result = process_batch_result

    def _note_pass(self, pass_s: float, plan: Any) -> None:
        batch = plan.batch_to_run
        prefill = batch if batch is not None and batch.forward_mode.is_extend() else None
        queues = (self._scheduler.waiting_queue, self._scheduler.grammar_manager.grammar_queue)
        if batch is None or pass_s >= self._used_due_s:
            self._ask_pool(pass_s)
        self.newest = Load(
            pass_s=pass_s,
            running_requests=len(plan.running_batch.reqs) + self._count_prefilling(prefill),
            waiting_requests=sum(map(len, queues)),
            waiting_uncached_tokens=self._sum_queues(queues, pass_s),
            prefilling_tokens=self._sum_prefill(prefill),
            used_tokens=self._used_tokens,
            prefill_tokens_total=self._prefill_tokens_total,
            decode_tokens_total=self._decode_tokens_total,
        )

    def _sum_queues(self, queues: Collection[list[Any]], now_s: float) -> int:
        """Uncached tokens of all waiting; n requests are summed at most every n * 0.2 ms.

        The shorter of the two lengths counts: what a queue once was must not outlast it.
        """
        length = sum(map(len, queues))
        wait_s = min(length, self._queue_length) * QUEUE_REFRESH_S_PER_REQUEST
        if now_s - self._queue_summed_s >= wait_s:
            self._queue_length, self._queue_summed_s = length, now_s
            self._queue_tokens = sum(map(_uncached_tokens, itertools.chain(*queues)))
        return self._queue_tokens

    def _count_prefilling(self, batch: Any) -> int:
        """Requests in the extend batch, and the chunked one also while it sits a step out."""
        chunked = self._scheduler.chunked_req
        reqs = [] if batch is None else batch.reqs
        return len(reqs) + (chunked is not None and chunked not in reqs)

    def _ask_pool(self, now_s: float) -> None:
        used, _ = self._scheduler.pool_stats_observer.get_pool_stats().get_kv_token_stats()
        self._used_tokens = int(used)
        self._used_due_s = now_s + USED_REFRESH_S

    def _sum_prefill(self, batch: Any) -> int:
        """Prompt tokens admitted but not computed: this step's, and the chunked rest."""
        chunked = self._scheduler.chunked_req
        rest = 0 if chunked is None else max(0, chunked.seqlen - (chunked.extend_end or 0))
        return rest + (0 if batch is None else _prompt_tokens(batch))

    def _count_tokens(self, batch: Any, result: Any) -> None:
        mode = batch.forward_mode
        if mode.is_extend_without_speculative():
            self._prefill_tokens_total += _prompt_tokens(batch)
            self._decode_tokens_total += len(batch.decoding_reqs or ())
        elif mode.is_decode() or mode.is_target_verify():
            self._decode_tokens_total += int(result.get_num_generated_tokens(len(batch.reqs)))


def _uncached_tokens(req: Any) -> int:
    """What is left to compute here of a waiting prompt: nothing while another instance does."""
    if is_elsewhere(req):
        return 0
    return max(0, int(req.seqlen - req.num_matched_prefix_tokens))


def _prompt_tokens(batch: Any) -> int:
    """Tokens of prompts in an extend batch; a mixed one carries one token per decode as well."""
    return int(batch.extend_num_tokens) - len(batch.decoding_reqs or ())
