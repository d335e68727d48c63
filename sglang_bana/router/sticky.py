"""Which instance holds a session or a stored response.

Ids that the front door mints name their instance themselves (see `ids`). Only ids chosen by a
client are remembered, in a bounded table that forgets the least recently used.
"""

from __future__ import annotations

from collections import OrderedDict

from sglang_bana.router.ids import read_tag
from sglang_bana.router.instances import Instance, InstanceBoard


class StickyTable:
    """Owner of each id. All methods are O(1)."""

    def __init__(self, board: InstanceBoard, max_entries: int) -> None:
        self._board = board
        self._max_entries = max_entries
        self._owners: OrderedDict[str, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._owners)

    def remember(self, identifier: str, instance: str) -> None:
        """Note the owner of an id that a client chose."""
        self._owners[identifier] = instance
        self._owners.move_to_end(identifier)
        if len(self._owners) > self._max_entries:
            self._owners.popitem(last=False)

    def find(self, identifier: str) -> Instance | None:
        """The owner of an id, None when it is not known."""
        return self.find_exact(identifier) or self._board.find_tag(read_tag(identifier))

    def find_exact(self, identifier: str) -> Instance | None:
        """The owner that was remembered for an id, whatever the id itself names."""
        name = self._owners.get(identifier)
        if name is None:
            return None
        self._owners.move_to_end(identifier)
        return self._board.find(name)
