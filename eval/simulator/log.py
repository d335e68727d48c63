"""What happened in a run, in order, as one digest: equal for equal runs."""

from __future__ import annotations

import hashlib
import struct
from enum import IntEnum

import msgspec

_PACK = struct.Struct("<Bdqqqq").pack


class Happening(IntEnum):
    """What an entry is about."""

    ARRIVED = 1
    REJECTED = 2
    DEMOTED = 3
    STEP = 4
    FIRST_TOKEN = 5
    FINISHED = 6
    RETRACTED = 7
    CANCELLED = 8
    FAILED = 9
    HELD = 10
    RESUMED = 11


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One happening. `subject` is a request, of a step its prompt tokens.

    Of a step `decodes` are those that decode in it, `half_done` the prompts that are begun and not
    finished after it, and `available_pages` what nobody uses of the KV cache.
    """

    kind: Happening
    at_s: float
    subject: int
    decodes: int = 0
    half_done: int = 0
    available_pages: int = 0


class EventLog:
    """The digest alone. O(1) an entry, no memory."""

    def __init__(self) -> None:
        self._digest = hashlib.blake2b(digest_size=16)
        self._entries = 0

    def add(self, entry: Entry) -> None:
        """Something happened."""
        self._entries += 1
        self._digest.update(
            _PACK(
                entry.kind,
                entry.at_s,
                entry.subject,
                entry.decodes,
                entry.half_done,
                entry.available_pages,
            )
        )

    @property
    def entries(self) -> int:
        """How many there were."""
        return self._entries

    def hash(self) -> str:
        """The digest of all so far."""
        return self._digest.hexdigest()


class KeptLog(EventLog):
    """The digest, and every entry."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Entry] = []

    def add(self, entry: Entry) -> None:
        super().add(entry)
        self.kept.append(entry)
