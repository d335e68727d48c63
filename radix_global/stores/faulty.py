"""A tier that fails now and then, by a seed: for tests, chaos and demonstrations."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Collection, Iterator, Mapping
from enum import StrEnum
from random import Random

from bana.radix_global.stores.counts import Counts
from bana.radix_global.stores.store import (
    HeldPage,
    Moment,
    PageOrigin,
    Payload,
    ReadOutcome,
    Refresh,
    Store,
    StoreStats,
    Write,
    WriteOutcome,
    view_bytes,
)
from bana.slo.clock import WaitingClock
from bana.slo.errors import ConfigError


class Fault(StrEnum):
    """What may happen to one operation; puts know errors and stalls only."""

    ERROR = "error"
    STALL = "stall"
    SHORT = "short"
    CORRUPT = "corrupt"


@dataclasses.dataclass(frozen=True)
class FaultOptions:
    """Which share of operations suffers what; at most one fault each. A stall lasts `stall_s`."""

    shares: Mapping[Fault, float]
    stall_s: float = 0.0

    def __post_init__(self) -> None:
        shares = self.shares.values()
        if not (all(share >= 0 for share in shares) and sum(shares) <= 1):
            raise ConfigError(f"shares {dict(self.shares)}, allowed: >= 0, at most 1 together")
        if not self.stall_s >= 0:
            raise ConfigError(f"stall_s {self.stall_s}, allowed: >= 0")


class FaultyStore:
    """`inner`, seen over a bad wire: its pages stay whole, and no wrong one is ever called READ.

    After SHORT or CORRUPT the target holds the damage, so that whoever uses a target in spite of
    its outcome is found out.
    """

    def __init__(
        self, inner: Store, options: FaultOptions, clock: WaitingClock, rng: Random
    ) -> None:
        self._inner = inner
        self._options = options
        self._clock = clock
        self._rng = rng
        self._injected = Counts()
        self._lock = threading.Lock()

    def put(self, key: bytes, payload: Payload, origin: PageOrigin) -> Write:
        """See Store."""
        fault = self._draw_fault()
        if fault is Fault.ERROR:
            return Write(WriteOutcome.FAILED)
        return self._inner.put(key, payload, origin)

    def read(self, key: bytes, target: memoryview) -> ReadOutcome:
        """See Store."""
        fault = self._draw_fault()
        if fault is Fault.ERROR:
            return ReadOutcome.FAILED
        outcome = self._inner.read(key, target)
        if outcome is not ReadOutcome.READ or fault not in _DAMAGES:
            return outcome
        _damage(view_bytes(target))
        return _DAMAGES[fault]

    def holds(self, key: bytes) -> bool:
        """See Store."""
        return self._inner.holds(key)

    def pages(self) -> list[HeldPage]:
        """See Store."""
        return self._inner.pages()

    def pages_before(self, moment: Moment) -> list[HeldPage]:
        """See Store."""
        return self._inner.pages_before(moment)

    def drop(self, key: bytes) -> Write:
        """See Store."""
        return self._inner.drop(key)

    def drop_many(self, keys: Collection[bytes]) -> Iterator[Write]:
        """See Store."""
        return self._inner.drop_many(keys)

    def refresh(self) -> Refresh:
        """See Store."""
        return self._inner.refresh()

    def stats(self) -> StoreStats:
        """See Store; injected faults are counted as `injected_<fault>`."""
        stats = self._inner.stats()
        return dataclasses.replace(stats, counts={**stats.counts, **self._injected.snapshot()})

    def close(self) -> None:
        """See Store."""
        self._inner.close()

    def _draw_fault(self) -> Fault | None:
        with self._lock:
            drawn = self._rng.random()
        fault = self._choose_fault(drawn)
        if fault is not None:
            self._injected.add(f"injected_{fault}")
        if fault is Fault.STALL:
            self._clock.sleep(self._options.stall_s)
        return fault

    def _choose_fault(self, drawn: float) -> Fault | None:
        end = 0.0
        for fault in Fault:
            end += self._options.shares.get(fault, 0.0)
            if drawn < end:
                return fault
        return None


_DAMAGES = {Fault.SHORT: ReadOutcome.SHORT, Fault.CORRUPT: ReadOutcome.CORRUPT}
_FLIPPED = bytes(range(255, -1, -1))


def _damage(target: memoryview) -> None:
    """Change the second half, and at least one byte."""
    half = target[target.nbytes // 2 :]
    half[:] = bytes(half).translate(_FLIPPED)
