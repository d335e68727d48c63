"""Carries plans out on SGLang's scheduler: order, sharing, yielding, and giving up progress.

waiting ──admit──▶ chunked ──last chunk──▶ running
   ▲                  │
   └── yield: its row and tail are freed, the computed prefix stays locked in the tree
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sglang.srt.mem_cache.common import release_kv_cache

from sglang_bana.engine.scheduling.counts import PassCounts
from sglang_bana.engine.scheduling.passes import PassPlan
from sglang_bana.engine.scheduling.waiting_room import Standing, WaitingRoom


class Effects:
    """The only code of bana that changes what a scheduler holds; its thread calls it."""

    def __init__(self, scheduler: Any, room: WaitingRoom, counts: PassCounts) -> None:
        self._scheduler = scheduler
        self._room = room
        self._counts = counts
        self._started: dict[Any, None] = {}

    def put_first(self, reqs: Sequence[Any]) -> None:
        """Move `reqs` to the front of the queue, in this order; the rest keeps its own."""
        queue = self._scheduler.waiting_queue
        waiting = [req for req in reqs if req is not self._scheduler.chunked_req]
        if queue[: len(waiting)] != waiting:
            chosen = set(map(id, waiting))
            queue[:] = waiting + [req for req in queue if id(req) not in chosen]

    def put_head_first(self, plan: PassPlan) -> None:
        """The same for a plan's head, of which the places are known: no other request is touched.

        Since the plan was made, requests may have joined the queue at its end, which moves nobody.
        """
        queue = self._scheduler.waiting_queue
        rows = () if plan.order is None else plan.order.head
        pairs = [pair for pair in zip(rows, plan.head, strict=True) if _is_at(queue, *pair)]
        for row in sorted((row for row, _ in pairs), reverse=True):
            del queue[row]
        queue[:0] = [req for _, req in pairs]

    def put_last(self, req: Any) -> None:
        """Move `req` behind all others."""
        self._scheduler.waiting_queue.remove(req)
        self._scheduler.waiting_queue.append(req)

    def put_by_arrival(self) -> None:
        """Order the whole queue as it came: what is done without a plan."""
        self._scheduler.waiting_queue.sort(key=lambda req: req.bana.sequence)

    def plan_share(self, ahead: Sequence[Any], chunk_tokens: int, grid_tokens: int) -> int | None:
        """Tokens left to the chunked request when those `ahead` that fit go with it, a multiple of
        `grid_tokens`; None where not even the first fits beside that many of it.
        """
        page = self._scheduler.page_size
        reserved = 0
        for req in ahead:
            needed = -(-self._room.new_tokens(req.bana.slot) // page) * page
            if reserved + needed > chunk_tokens - grid_tokens:
                break
            reserved += needed
        return (chunk_tokens - reserved) // grid_tokens * grid_tokens if reserved else None

    def can_separate(self, req: Any) -> bool:
        """Whether the chunked request can go back to the queue without losing anything but time."""
        tree = self._scheduler.tree_cache
        is_leaving = req is self._scheduler._pending_chunked_abort_req or req.finished()
        is_kept = tree.supports_prefix_sharing() and not tree.supports_mamba()
        return is_kept and req.lock is not None and not carries_state(req) and not is_leaving

    def count_started(self) -> int:
        """How many prompts wait half computed."""
        return len(self._started)

    def yield_chunked(self) -> None:
        """Put the chunked request back into the queue; its computed prefix stays locked."""
        req = self._scheduler.chunked_req
        standing: Standing = req.bana
        computed_tokens = req.prefix_len
        standing.lock = self._scheduler.tree_cache.lock(req.lock.node)
        self._take_back(req)
        self._started[req] = None
        self._room.mark_started(standing.slot)
        self._room.measure(standing.slot, req.seqlen, computed_tokens)
        self._counts.yields += 1

    def drop_chunked(self) -> None:
        """Put the chunked request back into the queue and give up what it has computed."""
        req = self._scheduler.chunked_req
        self._take_back(req)
        self._start_anew(req)

    def settle(self, req: Any) -> None:
        """The request was admitted, and holds its prefix itself again."""
        if req in self._started:
            self._unlock(req)
            self._counts.resumes += 1

    def forget(self, req: Any) -> None:
        """The request has left without having been admitted."""
        if req in self._started:
            self._unlock(req)

    def give_up(self, req: Any) -> None:
        """Let the pages of a half-computed request be evicted; it starts again in time."""
        self._unlock(req)
        self._start_anew(req)

    def give_up_all(self) -> None:
        """No page stays locked for the sake of a waiting request."""
        for req in list(self._started):
            self.give_up(req)

    def list_started(self) -> list[Any]:
        """The requests that wait half computed, the tightest deadline first."""
        return sorted(self._started, key=lambda r: (r.bana.budget.deadline_s, r.bana.sequence))

    def _start_anew(self, req: Any) -> None:
        # Whose answer had begun before it was retracted stays out of reach of demotion.
        if not req.output_ids:
            self._room.mark_fresh(req.bana.slot)
        self._counts.given_up += 1
        self._scheduler.note_given_up(req)

    def _unlock(self, req: Any) -> None:
        del self._started[req]
        lock, req.bana.lock = req.bana.lock, None
        self._scheduler.tree_cache.unlock(lock)

    def _take_back(self, req: Any) -> None:
        """Free the chunked request's row and requeue it, past every limit of the queue.

        A result of its last chunk may still be on its way: without these two fields it would be
        taken for the first token of the answer.
        """
        in_flight, retractions = req.inflight_middle_chunks, req.retraction_count
        release_kv_cache(req, self._scheduler.tree_cache, checkpoint=False)
        req.reset_for_retract()
        req.inflight_middle_chunks, req.retraction_count = in_flight, retractions
        req.is_retracted = False
        self._scheduler.chunked_req = None
        self._scheduler.waiting_queue.append(req)


def _is_at(queue: Sequence[Any], place: int, req: Any) -> bool:
    return place < len(queue) and queue[place] is req


def carries_state(req: Any) -> bool:
    """Whether something of the request besides its KV comes of each of its chunks."""
    return bool(
        req.return_logprob
        or req.return_hidden_states
        or req.session is not None
        or req.beam_group is not None
        or req.input_embeds is not None
        or req.positional_embed_overrides is not None
        or req.multimodal_inputs is not None
        or req.skip_radix_cache_insert
    )


def list_ahead(plan: PassPlan, chunked: Any) -> list[Any]:
    """Those whom the plan puts before the chunked request."""
    head = plan.head
    return head[: head.index(chunked)] if chunked in head else head
