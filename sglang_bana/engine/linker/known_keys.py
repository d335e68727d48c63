"""Which pages the store is believed to have, so that they are not copied into it again."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable


class KnownKeys:
    """At most `most` keys, those seen last. Any thread. A belief may be wrong: then a page is not
    saved where it could have been, until the store's next answer says so.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._keys: OrderedDict[bytes, None] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, keys: Iterable[bytes]) -> None:
        """The store has these."""
        with self._lock:
            for key in keys:
                self._keys[key] = None
                self._keys.move_to_end(key)
            while len(self._keys) > self._most:
                self._keys.popitem(last=False)

    def discard(self, keys: Iterable[bytes]) -> None:
        """The store does not have these."""
        with self._lock:
            for key in keys:
                self._keys.pop(key, None)

    def clear(self) -> None:
        """Nothing is known."""
        with self._lock:
            self._keys.clear()

    def __contains__(self, key: bytes) -> bool:
        with self._lock:
            return key in self._keys
