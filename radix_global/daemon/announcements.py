"""Which pages somebody is computing and will publish.

Announce ─▶ coming ──Publish, page by page──▶ known
              └── Withdraw, new weights, or proven death ─▶ ended: nobody waits for it
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence

from bana.radix_global.daemon.owners import Owner
from bana.slo.errors import StoreError

MAX_ANNOUNCEMENTS = 1024
MAX_ANNOUNCED_PAGES = 2**17
MAX_ENDED_PAGES = 2**14


class AnnouncementBook:
    """The announcements of all owners. Memory is bounded by the constants above, for each owner
    and for what has ended; O(1) a page.
    """

    def __init__(self) -> None:
        self._by_owner: dict[Owner, dict[int, tuple[bytes, ...]]] = {}
        self._coming: Counter[bytes] = Counter()
        self._ended: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._by_owner.values()))

    def add(self, owner: Owner, number: int, keys: Sequence[bytes]) -> bool:
        """Whether it is noted: not beyond the bounds. StoreError where its number is taken."""
        own = self._by_owner.get(owner, {})
        if number in own:
            raise StoreError(f"announcement {number} is known already; number each anew")
        pages = sum(map(len, own.values())) + len(keys)
        if len(own) >= MAX_ANNOUNCEMENTS or pages > MAX_ANNOUNCED_PAGES:
            return False
        self._by_owner.setdefault(owner, {})[number] = tuple(keys)
        self._coming.update(keys)
        for key in keys:
            self._ended.pop(key, None)
        return True

    def end(self, owner: Owner, number: int) -> list[bytes]:
        """Nothing more comes of it: the pages that nobody announces now. An unknown one is none."""
        own = self._by_owner.get(owner, {})
        keys = own.pop(number, ())
        if not own:
            self._by_owner.pop(owner, None)
        return self._forget(keys)

    def end_all(self, owner: Owner) -> list[bytes]:
        """The same for all that `owner` has announced."""
        ended: list[bytes] = []
        for number in tuple(self._by_owner.get(owner, ())):
            ended += self.end(owner, number)
        return ended

    def is_coming(self, key: bytes) -> bool:
        """Whether somebody is computing the page."""
        return key in self._coming

    def has_ended(self, key: bytes) -> bool:
        """Whether somebody was, not long ago, and no longer is."""
        return key in self._ended

    def _forget(self, keys: Iterable[bytes]) -> list[bytes]:
        ended = []
        for key in keys:
            self._coming[key] -= 1
            if self._coming[key] > 0:
                continue
            del self._coming[key]
            self._ended[key] = None
            ended.append(key)
        while len(self._ended) > MAX_ENDED_PAGES:
            self._ended.popitem(last=False)
        return ended
