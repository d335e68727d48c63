"""Pins of an earlier life, until their pages are found again, and the record of those there are.

What a daemon pins is written down; the next one makes each pin again once all its pages are known,
or the tiers were looked through. What is on no tier any more is not pinned again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from bana.radix_global.index import PrefixIndex
from bana.radix_global.keys import KEY_BYTES, count_keys


class PinRecord(Protocol):
    """Where the keys of pins are written down, those of one prefix end to end."""

    def load(self) -> tuple[bytes, ...]:
        """What was saved last; nothing where there is none, or it cannot be trusted."""
        ...

    def save(self, pins: Sequence[bytes]) -> None:
        """Replace it, soon: nobody waits for that."""
        ...


class KeptPins:
    """The pins that wait for their pages, by their last key; `say` is told what became of them."""

    def __init__(self, record: PinRecord, index: PrefixIndex, say: Callable[[str], None]) -> None:
        self._record = record
        self._index = index
        self._say = say
        self._waiting = {keys[-KEY_BYTES:]: keys for keys in record.load()}
        self._saved = frozenset(self._waiting.values())
        self.changes = 0
        if self._waiting:
            say(f"{len(self._waiting)} pins of an earlier life wait for their pages")

    def __len__(self) -> int:
        return len(self._waiting)

    def ends(self, end: bytes) -> tuple[bytes, ...]:
        """The last keys of those that `end` means: all where it is empty."""
        if not end:
            return tuple(self._waiting)
        return (end,) if end in self._waiting else ()

    def forget(self, end: bytes) -> None:
        """It waits no longer."""
        if self._waiting.pop(end, None) is not None:
            self.changes += 1

    def take_found(self, *, is_whole: bool) -> bytes | None:
        """The next one to be made; looks at one a call, or the first where all was found.

        One of which no page is known by then is forgotten.
        """
        if not self._waiting:
            return None
        end, keys = next(iter(self._waiting.items()))
        del self._waiting[end]
        known = self._index.match(keys).pages
        if known < count_keys(keys) and not is_whole:
            self._waiting[end] = keys
            return None
        self.changes += 1
        if known:
            return keys
        self.tell_refused(keys, "none of its pages is on a tier any more")
        return None

    def tell_made(self, keys: bytes, pages: int, outcome: str) -> None:
        """A pin was made again, of so many pages."""
        asked = count_keys(keys)
        line = f"the pin {keys[-KEY_BYTES:].hex()} is made again: {pages} of {asked} pages"
        self._say(line if pages == asked else f"{line}, the next one is {outcome}")

    def tell_refused(self, keys: bytes, why: str) -> None:
        """A pin is not made again."""
        self._say(f"the pin {keys[-KEY_BYTES:].hex()} is not made again: {why}")

    def save(self, pins: Sequence[bytes]) -> None:
        """Write down `pins` and those that wait, if that is news."""
        told = (*pins, *self._waiting.values())
        if self._saved != (new := frozenset(told)):
            self._saved = new
            self._record.save(told)
