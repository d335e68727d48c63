"""The next requests of a schedule as bytes, written while there is time for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec

from bana.eval.client.shapes import Shaper
from bana.eval.requests import Offered

MAX_AHEAD = 256
MAX_AHEAD_BYTES = 32 * 2**20


class Letter(msgspec.Struct, frozen=True):
    """One request, ready to be sent."""

    offered: Offered
    request_id: str
    request: bytes


class Outbox:
    """The requests in the order of the schedule; the first few are written at once."""

    def __init__(self, requests: Sequence[Offered], shaper: Shaper, run_id: str) -> None:
        self._waiting = iter(requests)
        self._shaper = shaper
        self._run_id = run_id
        self._ready: deque[Letter] = deque()
        self._ready_bytes = 0
        while self.write_ahead():
            pass

    def write_ahead(self) -> bool:
        """Write one more; False when enough are ready or none is left."""
        if len(self._ready) >= MAX_AHEAD or self._ready_bytes >= MAX_AHEAD_BYTES:
            return False
        offered = next(self._waiting, None)
        if offered is None:
            return False
        self._write(offered)
        return True

    def take(self) -> Letter:
        """The next request; there must be one."""
        if not self._ready:
            self._write(next(self._waiting))
        letter = self._ready.popleft()
        self._ready_bytes -= len(letter.request)
        return letter

    def _write(self, offered: Offered) -> None:
        request_id = f"{self._run_id}-{offered.index}"
        letter = Letter(offered, request_id, self._shaper.write(offered, request_id))
        self._ready.append(letter)
        self._ready_bytes += len(letter.request)
