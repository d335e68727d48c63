"""The scheduler's side of the store: who asks for what, who waits for it, and what came of it.

arrival ─ hash, ask ─▶ held ─ enough has arrived, or it pays no more ─▶ queue ─▶ admitted: loads
                                                                                     │ a load failed
                       queue, nothing is asked for ◀── computed after all ◀──────────┘
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.utils import get_storage_hash_str

from bana.slo.handoff import Handoff, read_handoff
from sglang_bana.engine.linker.counts import TokenSources
from sglang_bana.engine.linker.guard import answering
from sglang_bana.engine.linker.holding import Holds, HoldsEnded
from sglang_bana.engine.linker.linker import StoreLinker
from sglang_bana.engine.linker.requests import is_restorable
from sglang_bana.engine.linker.restore_desk import RestoreDesk
from sglang_bana.engine.linker.wanted import Asking, Wanted
from sglang_bana.engine.scheduling.outcomes import is_own
from sglang_bana.engine.stay import stay_of

# Ranks hear of a page within a millisecond of each other, where their cores are free.
CATCH_UP_S = 0.1
CATCH_UP_LOOKS = 20
logger = logging.getLogger(__name__)


class Restorer:
    """What one scheduler does with its store; its thread alone calls it."""

    def __init__(self, linker: StoreLinker, tree: Any, desk: RestoreDesk) -> None:
        self.linker = linker
        self.desk = desk
        self.counts = linker.counts
        self.sources = TokenSources()
        self.holds = Holds(desk, linker.counts)
        self._tree = tree

    @answering(None)
    def expect(self, req: Any, due_s: float) -> None:
        """The request's grammar is being compiled, in which time pages can come; asks once."""
        if not stay_of(req).is_expected:
            stay_of(req).is_expected = True
            self._ask(req, due_s)

    @answering(None)
    def arrive(self, req: Any, due_s: float) -> None:
        """The request enters the queue, and is held there if there may be something for it."""
        now_s = self.linker.clock.now_s()
        wanted = self.linker.wants.meet(req.rid, now_s) or self._ask(req, due_s)
        if wanted is not None:
            stay_of(req).is_elsewhere = wanted.is_computed_elsewhere
            self.holds.add(req, wanted, now_s)

    @answering(None)
    def spill(self, req: Any, due_s: float) -> None:
        """Have what was computed of this prompt kept in the store, where all of it has been saved
        chunk by chunk, from now until its next turn. What it gets back is decided then.
        """
        self.holds.end((req.rid,))
        self.linker.wants.drop_tail(req.rid)
        stay_of(req).meet_tokens = 0
        wanted = self._ask(req, due_s, covered=False)
        if wanted is not None:
            self.counts.spilled += 1
            self.holds.add(req, wanted, self.linker.clock.now_s())

    def _ask(self, req: Any, due_s: float, *, covered: bool = True) -> Wanted | None:
        """Ask for what the device lacks of the prompt; unless `covered`, also for what it has but
        may lose.
        """
        is_asked = self.desk.asks and is_restorable(req)
        hashes = self._hash_pages(req) if is_asked else []
        if not hashes:
            return None
        linker = self.linker
        handoff = read_handoff(getattr(req.sampling_params, "custom_params", None))
        if handoff is Handoff.PREFILL:
            linker.announce(req.rid, hashes)
        first = self._probe(req, len(hashes)) // self._tree.page_size if covered else 0
        # One that has begun to answer, and lost its KV, has been given its prompt before.
        is_new = covered and not req.output_ids
        is_elsewhere = is_new and handoff is Handoff.DECODE and self._lacks_much(req, first)
        asking = Asking(
            digest=linker.digest,
            hashes=hashes,
            first=first,
            due_s=due_s,
            await_s=self._find_patience_s(req, first) if is_elsewhere else 0.0,
        )
        return linker.wants.ask(req.rid, asking, linker.clock.now_s())

    def _lacks_much(self, req: Any, first: int) -> bool:
        """Whether what the device lacks from page `first` on is worth waiting for others."""
        lacking = len(req.origin_input_ids) - first * self._tree.page_size
        return not first or lacking >= self.linker.limits.await_tokens

    def _find_patience_s(self, req: Any, first: int) -> float:
        """How long others may take until they say that they compute the prompt from page `first`
        on.
        """
        limits = self.linker.limits
        computed_s = self.desk.price_rest_s(req, first * self._tree.page_size)
        if computed_s is None:
            return limits.await_s
        return min(max(limits.await_least_s, limits.await_share * computed_s), limits.await_s)

    @answering(None)
    def decline(self, req: Any) -> None:
        """The request is not taken in: nobody need wait for its prompt to be computed here."""
        part = read_handoff(getattr(req.sampling_params, "custom_params", None))
        if part is Handoff.PREFILL and self.desk.asks and is_restorable(req):
            self.linker.announce(req.rid, self._hash_pages(req))
            self.linker.withdraw(req.rid)

    def depart(self, req: Any) -> None:
        """The request waits no more, for whatever reason. While it computes, what it is to meet is
        still fetched.
        """
        self.holds.end((req.rid,))
        self.linker.wants.release(req.rid)

    def leave(self, req: Any) -> None:
        """The request is gone."""
        self.depart(req)
        self.linker.wants.drop_tail(req.rid)
        self.linker.withdraw(req.rid)

    @answering(None)
    def finish(self, reqs: Iterable[Any]) -> None:
        """Whoever of these has ended computes nothing more."""
        for req in reqs:
            if req.finished():
                self.linker.wants.drop_tail(req.rid)
                self.linker.withdraw(req.rid)

    def find_over(self) -> tuple[str, ...]:
        """Who is to be held no longer, by this rank's clock; once a pass, before it."""
        bell = self.linker.bell
        if not len(self.holds):
            bell.silence()
            return ()
        try:
            now_s = self.linker.clock.now_s()
            is_news = bell.silence()
            # Saved pages, and those of others, ring as well; who is not rung for has waited enough.
            while (wait_s := self.holds.answer_wait_s(now_s)) > 0:
                bell.wait(wait_s)
                now_s = self.linker.clock.now_s()
                if not bell.silence():
                    break
                is_news = True
            # An answer that came just before it was looked for has rung, too.
            is_news |= bell.silence()
            if is_news:
                self.holds.refresh(now_s)
            return self.holds.find_over(now_s)
        except Exception:
            # Nobody may be held for ever.
            self.counts.faults += 1
            logger.exception("bana: holds could not be looked at; all of them end")
            return self.holds.rids

    def end_holds(self, ended: HoldsEnded) -> list[Any]:
        """Hold these no longer; those that were held. Who is to meet its pages parts from them."""
        meets = dict(zip(ended.rids, ended.meet_pages, strict=False))
        reqs = self.holds.end(ended.rids)
        for req in reqs:
            if meets.get(req.rid):
                self._part(req, meets[req.rid])
        return reqs

    @answering(None)
    def _part(self, req: Any, pages: int) -> None:
        """It computes so many pages while those behind them are fetched."""
        first = self.linker.wants.part(req.rid, pages, self.linker.clock.now_s())
        stay_of(req).meet_tokens = first * self._tree.page_size
        self.counts.parted += first > 0

    def stay_parted(self, req: Any) -> None:
        """It cannot leave its seat, and is computed to its end."""
        stay_of(req).meet_tokens = 0
        self.linker.wants.drop_tail(req.rid)

    @answering(None)
    def meet(self, req: Any) -> None:
        """It has computed so many, and is held where it is worth waiting for the others."""
        stay = stay_of(req)
        stay.meet_tokens, stay.restored_before = 0, stay.restored
        now_s = self.linker.clock.now_s()
        wanted = self.linker.wants.rejoin(req.rid, now_s)
        if wanted is not None:
            self.counts.met += 1
            self.holds.add(req, wanted, now_s)

    def tell_over(self, rids: tuple[str, ...]) -> HoldsEnded:
        """The same for all ranks."""
        meets = tuple(map(self.holds.find_meeting, rids))
        return HoldsEnded(rids, self.count_arrived(rids), meets if any(meets) else ())

    def count_arrived(self, rids: Iterable[str]) -> tuple[int, ...]:
        """How many pages have arrived on this rank for each of these requests."""
        found = (self.linker.wants.find(rid) for rid in rids)
        return tuple(0 if wanted is None else wanted.want.arrived_pages for wanted in found)

    def catch_up(self, ended: HoldsEnded) -> None:
        """Give this rank a moment for pages that have arrived on rank 0: what one rank lacks, none
        can restore. Nothing is decided by it.
        """
        for _ in range(CATCH_UP_LOOKS):
            if not any(map(self._is_behind, ended.rids, ended.arrived_pages)):
                return
            self.linker.bell.wait(CATCH_UP_S / CATCH_UP_LOOKS)
            self.linker.bell.silence()

    def _is_behind(self, rid: str, pages: int) -> bool:
        wanted = self.linker.wants.find(rid)
        return wanted is not None and not wanted.is_settled and wanted.want.arrived_pages < pages

    def settle(self, batch: Any) -> list[Any]:
        """The step with these requests has been launched, and its loads have ended: whose load
        failed. SGLang has marked them, and would answer them with an error.
        """
        failed = [req for req in batch.reqs if req.discard_output_reason is not None]
        for req in batch.reqs:
            self.depart(req)
            if req not in failed:
                self._attribute(req)
        self.counts.recomputed += len(failed)
        return failed

    def report_pages(self) -> dict[str, int]:
        """Restored pages by the place they came from; any thread may ask."""
        page = self._tree.page_size
        restored = self.sources.report()
        return {
            name: tokens // page
            for name, tokens in restored.items()
            if name not in ("device", "computed")
        }

    def change_weights(self, *, is_idle: bool) -> None:
        """Weights are about to change; `is_idle` says that no request has KV outside the tree."""
        self.holds.end_all()
        self.linker.change_weights()
        if not is_idle or self._tree.total_size()[0]:
            self.linker.rest()

    def change_adapters(self) -> None:
        """An adapter comes or goes. Its KV has the adapter's unique name in its hash, so that what
        the tree holds stays right.
        """
        self.holds.end_all()
        self.linker.change_adapters()

    def _attribute(self, req: Any) -> None:
        """Once a prompt, at its first step; where it parted from its pages, once it met them."""
        stay = stay_of(req)
        if stay.is_attributed or is_own(req):
            return
        if stay.device_tokens is None:
            stay.device_tokens = req.cached_tokens_device
        if stay.meet_tokens:
            return
        stay.is_attributed = True
        self.sources.add(len(req.origin_input_ids), stay.device_tokens, stay.restored)

    def _hash_pages(self, req: Any) -> list[str]:
        """SGLang's chained hashes of the whole pages of which a cached copy could be used."""
        key = self._make_key(req, req._compute_max_prefix_len(_count_tokens(req)))
        page = self._tree.page_size
        aligned = key.page_aligned(page)
        return list(get_storage_hash_str(aligned, None, page_size=page)) if len(aligned) else []

    def _probe(self, req: Any, pages: int) -> int:
        """How many tokens of these pages the device has."""
        key = self._make_key(req, pages * self._tree.page_size)
        return int(self._tree.match_prefix(MatchPrefixParams(key=key)).device_prefix_len)

    def _make_key(self, req: Any, limit: int) -> RadixKey:
        return RadixKey(
            token_ids=req.origin_input_ids + req.output_ids,
            extra_key=req.extra_key,
            limit=limit,
            cache_salt=req.cache_salt,
        )


def _count_tokens(req: Any) -> int:
    return len(req.origin_input_ids) + len(req.output_ids)
