"""How much of what passes between tiers and arena are reads."""

from __future__ import annotations

import math


class Traffic:
    """Bytes read from tiers, and bytes of pages that were new, both forgotten over `memory_s`.

    A new page counts once however many copies of it are written: replication must not hide the
    reads that asked for it. `prior_bytes` of new pages are taken for granted, so that the first few
    reads are no habit. Time comes in and never goes back.
    """

    def __init__(self, memory_s: float = 60.0, prior_bytes: int = 16 * 2**20) -> None:
        self._memory_s = memory_s
        self._prior_bytes = prior_bytes
        self._at_s = 0.0
        self._read_bytes = 0.0
        self._new_bytes = 0.0

    def note_read(self, size_bytes: int, now_s: float) -> None:
        """So much was read from a tier."""
        self._pass_time(now_s)
        self._read_bytes += size_bytes

    def note_new(self, size_bytes: int, now_s: float) -> None:
        """A page of so many bytes was published that no tier held."""
        self._pass_time(now_s)
        self._new_bytes += size_bytes

    def read_share(self, now_s: float) -> float:
        """Reads as a share of both, from 0 to below 1."""
        self._pass_time(now_s)
        return self._read_bytes / (self._read_bytes + self._new_bytes + self._prior_bytes)

    def _pass_time(self, now_s: float) -> None:
        passed_s, self._at_s = max(0.0, now_s - self._at_s), max(now_s, self._at_s)
        kept = math.exp(-passed_s / self._memory_s)
        self._read_bytes *= kept
        self._new_bytes *= kept
