"""A tier made as slow as another would be: bandwidth, latency and jitter."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Collection, Iterator
from random import Random

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


@dataclasses.dataclass(frozen=True)
class Throttle:
    """How slow: one line of `bandwidth_bytes_per_s` that reads and writes share, as a device does.

    Each read and write is answered `latency_s` later than its bytes went over the line, and up to
    `jitter_s` more, uniformly.
    """

    bandwidth_bytes_per_s: float
    latency_s: float = 0.0
    jitter_s: float = 0.0

    def __post_init__(self) -> None:
        if not self.bandwidth_bytes_per_s > 0:
            raise ConfigError(
                f"bandwidth_bytes_per_s {self.bandwidth_bytes_per_s}, allowed: > 0; leave the tier "
                "unthrottled instead"
            )
        if not (self.latency_s >= 0 and self.jitter_s >= 0):
            raise ConfigError(
                f"latency_s {self.latency_s} and jitter_s {self.jitter_s}, allowed: >= 0"
            )


class ThrottledStore:
    """`inner`, answering when a slower tier would have; an `inner` that is slower still shows.

    Bytes are charged when they moved: a page that is missing, present already or refused costs the
    latency only. Dropping and refreshing cost nothing.
    """

    def __init__(self, inner: Store, throttle: Throttle, clock: WaitingClock, rng: Random) -> None:
        self._inner = inner
        self._throttle = throttle
        self._clock = clock
        self._rng = rng
        self._line_free_s = clock.now_s()
        self._lock = threading.Lock()

    def put(self, key: bytes, payload: Payload, origin: PageOrigin) -> Write:
        """See Store."""
        begun_s = self._clock.now_s()
        write = self._inner.put(key, payload, origin)
        moved = write.outcome is WriteOutcome.WRITTEN
        self._wait(begun_s, view_bytes(payload).nbytes if moved else 0)
        return write

    def read(self, key: bytes, target: memoryview) -> ReadOutcome:
        """See Store."""
        begun_s = self._clock.now_s()
        outcome = self._inner.read(key, target)
        moved = outcome in (ReadOutcome.READ, ReadOutcome.SHORT, ReadOutcome.CORRUPT)
        self._wait(begun_s, target.nbytes if moved else 0)
        return outcome

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
        """See Store."""
        return self._inner.stats()

    def close(self) -> None:
        """See Store."""
        self._inner.close()

    def _wait(self, begun_s: float, moved_bytes: int) -> None:
        """Sleep until the bytes have passed the line behind those of the others, and arrived."""
        with self._lock:
            start_s = max(begun_s, self._line_free_s)
            self._line_free_s = start_s + moved_bytes / self._throttle.bandwidth_bytes_per_s
            delay_s = self._throttle.latency_s + self._rng.uniform(0, self._throttle.jitter_s)
            end_s = self._line_free_s + delay_s
        left_s = end_s - self._clock.now_s()
        if left_s > 0:
            self._clock.sleep(left_s)
