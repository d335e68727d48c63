"""Pages that reads found to be gone, until the next refresh tells of them."""

from __future__ import annotations

import threading


class Losses:
    """Keys of pages that are held no longer, from any thread; as many as were held, at most.

    The outcome of a read tells of a loss too, but whoever wanted the page may not listen any more.
    """

    def __init__(self) -> None:
        self._keys: dict[bytes, None] = {}
        self._lock = threading.Lock()

    def add(self, key: bytes) -> None:
        """A read found it gone."""
        with self._lock:
            self._keys[key] = None

    def take(self) -> tuple[bytes, ...]:
        """All since the last call; some may have come again."""
        with self._lock:
            taken, self._keys = self._keys, {}
        return tuple(taken)
