"""Computes anew what was to be loaded and was not: nobody is answered with an error for it.

launch of B ─ loads of r failed ─▶ r is out of B ─▶ result of B, r's part unused ─▶ r waits again
"""

from __future__ import annotations

from typing import Any

from sglang.srt.mem_cache.common import release_kv_cache

from sglang_bana.engine.stay import stay_of


class Recovery:
    """Requests of a launched step whose KV did not land; the scheduler's thread calls it.

    Their rows are freed only when the step's result is there: until then it may write into them.
    """

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._lost: list[Any] = []
        self._leaving: list[Any] = []

    @property
    def lost(self) -> list[Any]:
        """Who is between the launch and the result."""
        return list(self._lost)

    def begin(self, failed: list[Any]) -> None:
        """Their step has just been launched.

        To SGLang they are prompts of which more chunks are to come: it commits nothing of theirs,
        and steps over their part of the result.
        """
        scheduler = self._scheduler
        for req in failed:
            req.discard_output_reason = None
            req.skip_radix_cache_insert = False
            stay_of(req).is_lost = True
            if req is scheduler.chunked_req:
                scheduler.chunked_req = scheduler._pending_chunked_abort_req = None
            else:
                req.inflight_middle_chunks += 1
        self._lost += failed
        self._leaving = failed

    def leave_out(self, last_batch: Any) -> None:
        """Before the next step is planned: they do not go on with the others of theirs."""
        leaving, self._leaving = self._leaving, []
        if leaving and last_batch is not None:
            last_batch.filter_batch(reqs_to_exclude=leaving)
            self._scheduler.running_batch.batch_is_full = False

    def take_ended(self, batch: Any) -> list[Any]:
        """Those of the batch whose result has now been seen; they are free to wait again."""
        ended = [req for req in self._lost if req in batch.reqs]
        for req in ended:
            self._lost.remove(req)
            self._take_back(req)
        return ended

    def _take_back(self, req: Any) -> None:
        """As SGLang retracts a request, except that it had never begun."""
        kept = req.retraction_count, req.retracted_stain, req.inflight_middle_chunks
        release_kv_cache(req, self._scheduler.tree_cache, checkpoint=False)
        req.reset_for_retract()
        req.retraction_count, req.retracted_stain, req.inflight_middle_chunks = kept
        req.is_retracted = stay_of(req).is_lost = False
        stay_of(req).restored = ()
        if not req.retracted_stain:
            # It is counted anew, by what it will find then.
            req.cached_tokens = req.already_computed = req.storage_hit_length = 0
            req._cache_breakdown_computed = False
