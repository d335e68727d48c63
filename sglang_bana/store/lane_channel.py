"""Bytes to and from a lane, each by a deadline."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

from bana.slo.clock import Clock
from bana.slo.errors import StoreError, StoreTimeout
from sglang_bana.store.mooncake_lane import ANSWER


class LaneChannel:
    """Our end of a socket pair; StoreTimeout past a deadline, StoreError where the lane is gone."""

    def __init__(self, end: socket.socket, clock: Clock) -> None:
        self._end = end
        self._clock = clock

    def send(self, part: bytes | memoryview, end_s: float) -> None:
        """All of it."""
        with self._limited(end_s):
            self._end.sendall(part)

    def receive(self, target: memoryview, end_s: float) -> None:
        """Fill `target`."""
        while target.nbytes:
            with self._limited(end_s):
                count = self._end.recv_into(target)
            _require(count)
            target = target[count:]

    def receive_answer(self, end_s: float) -> tuple[int, int]:
        """Its code, and the length of the object that follows."""
        raw = bytearray(ANSWER.size)
        self.receive(memoryview(raw), end_s)
        code, size_bytes = ANSWER.unpack(raw)
        return int(code), int(size_bytes)

    def await_word(self, end_s: float) -> None:
        """Return once there is something to receive; nothing is."""
        with self._limited(end_s):
            count = len(self._end.recv(1, socket.MSG_PEEK))
        _require(count)

    def close(self) -> None:
        """Idempotent."""
        self._end.close()

    @contextlib.contextmanager
    def _limited(self, end_s: float) -> Iterator[None]:
        left_s = end_s - self._clock.now_s()
        try:
            if left_s <= 0:
                raise TimeoutError
            self._end.settimeout(left_s)
            yield
        except TimeoutError as error:
            raise StoreTimeout("a lane has not answered in time") from error
        except OSError as error:
            raise StoreError(f"a lane has broken: {error.strerror}") from error


def _require(count: int) -> None:
    if count == 0:
        raise StoreError("a lane has ended")
