"""Giving up whole segments, where every page that stands in one is to go.

    oldest ──▶ | all to go | all to go | some stay | all to go | own |
               └──── unlinked ────────┘└──── each page to go is marked ────┘

A segment's marks, and its copies of pages, hide what older segments say of the same keys. So only
those go that nothing older outlives, as in an eviction. One that a living writer holds stays too.
"""

from __future__ import annotations

from collections.abc import Collection

from bana.radix_global.stores.appending import Appender, Shelf
from bana.radix_global.stores.catalogue import Changes, Segment


class Clearing:
    """Unlinks the segments of one directory store; one caller at a time."""

    def __init__(self, shelf: Shelf, appender: Appender) -> None:
        self._shelf = shelf
        self._appender = appender

    def remove(self, segment: Segment, keys: Collection[bytes], changes: Changes) -> bool:
        """Take `segment`, the oldest, away if only `keys` stand there; whether it is gone.

        OSError where the folder does not let it work.
        """
        catalogue = self._shelf.catalogue
        if not catalogue.knows(segment):
            return True
        if any(page.key not in keys for page in catalogue.pages_at(segment)):
            return False
        if segment is self._appender.segment:
            self._appender.seal()
        elif self._shelf.folder.is_being_written(segment.name):
            return False
        # Looked at once nobody writes there any more: its writer may have gone on meanwhile.
        if not self._shelf.survey.is_known(segment):
            return False
        self._appender.give_up(segment, changes)
        self._shelf.survey.counts.add("cleared_segments")
        return True
