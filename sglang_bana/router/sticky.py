"""Which instance holds a session or a stored response.

Ids that the front door mints name their instance themselves (see `ids`). Only ids chosen by a
client are remembered, in a bounded table that forgets the least recently used.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from enum import StrEnum

import msgspec

from sglang_bana.router.ids import read_tag
from sglang_bana.router.instances import Instance, InstanceBoard
from sglang_bana.router.prefix_index import BLOCK_BYTES, hash_prefixes

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


class Memory(msgspec.Struct, frozen=True):
    """Where an id was last, and with which prompt: its first `blocks` blocks, told by `mark`."""

    instance: str
    blocks: int = 0
    mark: int = 0


class StickyTable:
    """The instance of each id. All methods are O(1), with a prompt O(its bytes)."""

    def __init__(self, board: InstanceBoard, max_entries: int) -> None:
        self._board = board
        self._max_entries = max_entries
        self._memories: OrderedDict[bytes, Memory] = OrderedDict()

    def __len__(self) -> int:
        return len(self._memories)

    def remember(self, key: bytes, instance: str, prompt: bytes = b"") -> None:
        """Note the instance of an id that a client chose, and what it has computed for it."""
        # The last block holds the end of a list, which moves when a conversation goes on.
        marks = hash_prefixes(prompt)[:-1]
        self._memories[key] = Memory(instance, len(marks), marks[-1] if marks else 0)
        self._memories.move_to_end(key)
        if len(self._memories) > self._max_entries:
            self._memories.popitem(last=False)

    def find(self, key: bytes) -> Instance | None:
        """The instance that was remembered, whatever the id itself names."""
        memory = self._memories.get(key)
        if memory is None:
            return None
        self._memories.move_to_end(key)
        return self._board.find(memory.instance)

    def count_shared(self, key: bytes, prompt: bytes) -> int:
        """How many bytes at the beginning of `prompt` were that of the one remembered: of all of
        it, or of nothing.
        """
        memory = self._memories.get(key, Memory(""))
        marks = hash_prefixes(prompt) if memory.blocks else []
        is_same = 0 < memory.blocks <= len(marks) and marks[memory.blocks - 1] == memory.mark
        return memory.blocks * BLOCK_BYTES if is_same else 0

    def find_owner(self, caller: str, identifier: str) -> Instance | None:
        """The owner of an id: the remembered one, else the one that the id names."""
        found = self.find(make_key(Hold.OWNER, caller, identifier))
        return found or self._board.find_tag(read_tag(identifier))
