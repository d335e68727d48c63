"""What each waiting request wants of the store, and what it has got.

prompt   │page 0│page 1│page 2│page 3│page 4│ rest
          on the device │ first ── asked for ─▶ │
                        │ arrived ──▶│ missing  │
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from operator import not_

import msgspec

from bana.radix_global.keys import page_keys, split_keys
from bana.radix_global.link import Restorable, StoreLink, Want
from bana.radix_global.messages import WantOutcome
from bana.radix_global.wire_parts import MAX_BATCH_PAGES
from bana.slo.fetching import IN_ARENA
from sglang_bana.engine.linker.counts import LinkerCounts
from sglang_bana.engine.linker.known_keys import KnownKeys
from sglang_bana.engine.linker.limits import LinkerLimits


class Asking(msgspec.Struct, frozen=True):
    """A prompt whose pages with these `hashes`, from page `first` on, the device lacks.

    Its first token is due at `due_s`. Where somebody is to compute it for us, it is waited for
    `await_s` that they say so, otherwise not at all (0).
    """

    digest: bytes
    hashes: Sequence[str]
    first: int
    due_s: float
    await_s: float = 0.0


@dataclass(frozen=True, eq=False)
class Wanted:
    """The pages of one prompt: `hashes` of all of them, a want from page `first` on. Somebody may
    be computing them for us. `waits_s` is since when the request does nothing else.
    """

    hashes: Sequence[str]
    first: int
    keys: bytes
    want: Want
    asked_s: float
    due_s: float
    is_computed_elsewhere: bool = False
    digest: bytes = b""
    met_s: float | None = None

    @property
    def waits_s(self) -> float:
        return self.asked_s if self.met_s is None else self.met_s

    @property
    def known_pages(self) -> int | None:
        """How many pages the store has promised; None before it answers."""
        return None if self.want.known is None else len(self.want.known)

    @property
    def is_settled(self) -> bool:
        """Whether nothing more will arrive."""
        return self.want.outcome is not None

    def count_ready(self, page_hash: str) -> int:
        """How many pages are there from the one with this hash on, without a gap. O(pages)."""
        start = self._find(page_hash)
        return 0 if start is None else max(0, self.want.arrived_pages - start)

    def take(self, page_hash: str, count: int) -> Restorable | None:
        """Those pages; None where they are fewer than `count` by now."""
        start = self._find(page_hash)
        if start is None:
            return None
        ready = self.want.pages()
        slots = ready.slots[start : start + count]
        if len(slots) < count:
            return None
        return Restorable(slots, ready.origins[start : start + count])

    def _find(self, page_hash: str) -> int | None:
        """Where the page is in the want."""
        try:
            return self.hashes.index(page_hash, self.first) - self.first
        except ValueError:
            return None


class WantBook:
    """The wants of all waiting requests; only the scheduler's thread calls it."""

    def __init__(
        self, store: StoreLink, limits: LinkerLimits, known: KnownKeys, counts: LinkerCounts
    ) -> None:
        self._store = store
        self._limits = limits
        self._known = known
        self._counts = counts
        self._wanted: dict[str, Wanted] = {}
        # What is fetched for requests that compute what comes before it.
        self._tails: dict[str, Wanted] = {}

    def __len__(self) -> int:
        return len(self._wanted) + len(self._tails)

    def ask(self, rid: str, asking: Asking, now_s: float) -> Wanted | None:
        """Want those pages; None where there are none, or too many want already.

        Whether it is None depends on nothing that a rank sees alone.
        """
        self.release(rid)
        wanted = self._want(asking, now_s)
        if wanted is not None:
            self._wanted[rid] = wanted
        return wanted

    def part(self, rid: str, pages: int, now_s: float) -> int:
        """Of what the request wants, keep what has arrived, and want what lies behind the first
        `pages` pages by itself, until `rejoin`. The first such page in the prompt, 0 for none.
        """
        whole = self._wanted.get(rid)
        if whole is None or rid in self._tails:
            return 0
        first = whole.first + pages
        asking = Asking(whole.digest, whole.hashes, first, whole.due_s)
        tail = self._want(asking, now_s)
        if tail is None:
            return 0
        self._store.cancel(whole.want)
        self._tails[rid] = tail
        return first

    def rejoin(self, rid: str, now_s: float) -> Wanted | None:
        """The request wants its tail now, and nothing else; None where it has none."""
        tail = self._tails.pop(rid, None)
        if tail is None:
            return None
        self.release(rid)
        self._wanted[rid] = tail
        return self.meet(rid, now_s)

    def meet(self, rid: str, now_s: float) -> Wanted | None:
        """What the request wants, for which it has begun to wait only now; None for nothing."""
        wanted = self._wanted.get(rid)
        if wanted is None:
            return None
        self._wanted[rid] = found = dataclasses.replace(wanted, met_s=now_s)
        return found

    def drop_tail(self, rid: str) -> None:
        """The request has left, or has been computed to its end."""
        tail = self._tails.pop(rid, None)
        if tail is not None:
            self._end(tail)

    def _want(self, asking: Asking, now_s: float) -> Wanted | None:
        hashes, first, due_s = asking.hashes, asking.first, asking.due_s
        asked = hashes[first : first + MAX_BATCH_PAGES]
        if not asked or len(self) >= self._limits.max_wants:
            return None
        keys = page_keys(asking.digest, asked)
        until_s = now_s + asking.await_s if asking.await_s else 0.0
        end_s = now_s + self._limits.fetch_s
        want = self._store.prefetch(keys, max(due_s, 0.0), end_s, until_s)
        self._counts.wanted_pages += len(asked)
        return Wanted(hashes, first, keys, want, now_s, due_s, asking.await_s > 0, asking.digest)

    def find(self, rid: str) -> Wanted | None:
        """What the request wants; None where it wants nothing (any more)."""
        return self._wanted.get(rid)

    def release(self, rid: str) -> None:
        """The request has left, or has what it gets; its pages need not be kept."""
        wanted = self._wanted.pop(rid, None)
        if wanted is not None:
            self._end(wanted)

    def release_all(self) -> None:
        """Nobody wants anything."""
        for rid in list(self._wanted):
            self.release(rid)
        for rid in list(self._tails):
            self.drop_tail(rid)

    def _end(self, wanted: Wanted) -> None:
        self._learn(wanted)
        self._store.release(wanted.want)

    def _learn(self, wanted: Wanted) -> None:
        """What the arena has need not be saved. What only a tier has is, once it is computed: it is
        better there, and others may be waiting for it.
        """
        places = wanted.want.known
        if places is None or wanted.want.outcome is WantOutcome.LOST:
            return
        keys, arrived = split_keys(wanted.keys), wanted.want.arrived_pages
        held = [page < arrived or bool(mask & IN_ARENA) for page, mask in enumerate(places)]
        self._known.add(compress(keys, held))
        # One page beyond the known prefix was looked for and not found; what follows it may be
        # there, but nobody could restore it.
        lacking = [*map(not_, held), *(True,) * (len(keys) - len(places))]
        self._known.discard(compress(keys, lacking))
        self._counts.missed_pages += len(keys) - len(places)
