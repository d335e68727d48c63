"""Numbers that several threads add to."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping


class Counts:
    """Counters by name that only grow."""

    def __init__(self) -> None:
        self._counter: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, name: str, amount: int = 1) -> None:
        """Count `amount` more of `name`."""
        with self._lock:
            self._counter[name] += amount

    def snapshot(self) -> Mapping[str, int]:
        """What was counted so far."""
        with self._lock:
            return dict(self._counter)
