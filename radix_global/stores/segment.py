"""Appending entries to a segment of one's own, so that one is visible only when it is whole."""

from __future__ import annotations

import os
from enum import StrEnum

from bana.radix_global.stores.page import HEADER_BYTES


class Sync(StrEnum):
    """What has to survive what.

    NEVER: written pages survive their process (the page cache holds them), and what a power loss
    tears is found by its checksums. EACH_PAGE: payload, then header, are on the medium before a
    page counts as written; also what hosts that share a folder need to see each other's order.
    """

    NEVER = "never"
    EACH_PAGE = "each_page"


class SegmentWriter:
    """The one writer of the segment behind `fd`, from its beginning.

          | entry | entry | (zeros)  payload…       1. the payload, behind room for its header
          | entry | entry | header | payload |      2. the header: now the entry is there
                          ^ tail             ^ tail afterwards

    Whoever scans meanwhile stops at the zeros. Not thread-safe.
    """

    def __init__(self, fd: int, limit_bytes: int, sync: Sync) -> None:
        self._fd = fd
        self._limit_bytes = limit_bytes
        self._sync = sync
        self.tail_bytes = 0
        self._is_sound = True

    def has_room(self, payload_bytes: int) -> bool:
        """Whether an entry with such a payload may be appended, and others would see it."""
        end_bytes = self.tail_bytes + HEADER_BYTES + payload_bytes
        is_named = os.fstat(self._fd).st_nlink > 0
        return self._is_sound and is_named and end_bytes <= self._limit_bytes

    def append(self, header: bytes, payload: memoryview) -> int:
        """Write one entry and answer its offset; on OSError nothing of it is visible."""
        offset = self.tail_bytes
        try:
            self._write(payload, offset + HEADER_BYTES)
            self._write(memoryview(header), offset)
        except BaseException:
            self._take_back(offset)
            raise
        self.tail_bytes = offset + HEADER_BYTES + payload.nbytes
        return offset

    def close(self) -> None:
        """Give up the lock and the descriptor."""
        os.close(self._fd)

    def _write(self, data: memoryview, offset: int) -> None:
        done = 0
        while done < data.nbytes:
            done += os.pwrite(self._fd, data[done:], offset + done)
        if self._sync is Sync.EACH_PAGE:
            os.fdatasync(self._fd)

    def _take_back(self, offset: int) -> None:
        """Cut off what was begun: a later, shorter entry must not end inside its remains."""
        try:
            os.ftruncate(self._fd, offset)
        except OSError:
            self._is_sound = False
