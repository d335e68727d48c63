"""Which instance holds a session or a stored response.

Ids that the front door mints name their instance themselves (see `ids`). Only ids chosen by a
client are remembered, in a bounded table that forgets the least recently used.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from enum import StrEnum

from sglang_bana.router.ids import read_tag
from sglang_bana.router.instances import Instance, InstanceBoard

KEY_BYTES = 16


class Hold(StrEnum):
    """What an id that a client chose says about its instance.

    OWNER: only it can answer, because it holds what the id names. FRIEND: it had the earlier
    requests, whose prefix it may still have.
    """

    OWNER = "owner"
    FRIEND = "friend"


def make_key(hold: Hold, caller: str, identifier: str) -> bytes:
    """The table's key for an id of a caller: one of equal size however long the id is."""
    text = f"{hold} {caller!r} {identifier!r}"
    return hashlib.blake2b(text.encode(), digest_size=KEY_BYTES).digest()


class StickyTable:
    """The instance of each id. All methods are O(1)."""

    def __init__(self, board: InstanceBoard, max_entries: int) -> None:
        self._board = board
        self._max_entries = max_entries
        self._instances: OrderedDict[bytes, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._instances)

    def remember(self, key: bytes, instance: str) -> None:
        """Note the instance of an id that a client chose."""
        self._instances[key] = instance
        self._instances.move_to_end(key)
        if len(self._instances) > self._max_entries:
            self._instances.popitem(last=False)

    def find(self, key: bytes) -> Instance | None:
        """The instance that was remembered, whatever the id itself names."""
        name = self._instances.get(key)
        if name is None:
            return None
        self._instances.move_to_end(key)
        return self._board.find(name)

    def find_owner(self, caller: str, identifier: str) -> Instance | None:
        """The owner of an id: the remembered one, else the one that the id names."""
        found = self.find(make_key(Hold.OWNER, caller, identifier))
        return found or self._board.find_tag(read_tag(identifier))
