"""Where the next page is written, and what is given up to make room for it."""

from __future__ import annotations

import dataclasses
import errno
from contextlib import suppress
from random import Random

from bana.radix_global.stores.catalogue import Catalogue, Changes, Segment
from bana.radix_global.stores.descriptors import OpenFiles
from bana.radix_global.stores.folder import Folder
from bana.radix_global.stores.loading import load_page
from bana.radix_global.stores.naming import name_next
from bana.radix_global.stores.options import DirectoryOptions
from bana.radix_global.stores.page import HEADER_BYTES, Header, pack_header, page_header
from bana.radix_global.stores.recovery import Entry
from bana.radix_global.stores.segment import SegmentWriter, Sync
from bana.radix_global.stores.store import ReadOutcome
from bana.radix_global.stores.survey import Survey

_NAME_TRIES = 4


@dataclasses.dataclass(frozen=True)
class Shelf:
    """What the writing and the reading side of one directory store have in common."""

    folder: Folder
    files: OpenFiles
    catalogue: Catalogue
    survey: Survey
    options: DirectoryOptions


@dataclasses.dataclass(frozen=True)
class Active:
    """The segment that is being written."""

    segment: Segment
    writer: SegmentWriter


class Appender:
    """Writes to one segment of its own at a time and, for the next, evicts the oldest ones.

    Evicting a whole segment costs one unlink and no rewriting, except of pages that were read since
    they were written: those get a second chance, as in CLOCK, up to `kept_bytes` a new segment.
    One caller at a time; every method raises OSError where the folder does not let it work.
    """

    def __init__(self, shelf: Shelf, rng: Random) -> None:
        self._shelf = shelf
        self._rng = rng
        self._active: Active | None = None

    @property
    def segment(self) -> Segment | None:
        """The segment that is being written, if any."""
        return None if self._active is None else self._active.segment

    def append(self, header: Header, payload: memoryview, changes: Changes) -> None:
        """Write one entry, at the end of everything that this store knows to be older."""
        active = self._active
        if active is None or not self._has_room(active, payload.nbytes):
            active = self._roll_over(changes)
        self._write(active, header, payload, changes)

    def start_behind(self, segment: Segment, changes: Changes) -> None:
        """See to it that what is appended next counts as later than what stands in `segment`."""
        if self._active is None or self._active.segment.name < segment.name:
            self._roll_over(changes)

    def leave_vanished(self) -> None:
        """Write no longer to a segment that somebody took away."""
        active = self._active
        if active is not None and active.segment not in self._shelf.catalogue.segments():
            self._active = None
            active.writer.close()

    def seal(self) -> None:
        """End the present segment; an empty one is taken away."""
        active, self._active = self._active, None
        if active is None:
            return
        active.writer.close()
        if active.writer.tail_bytes == 0:
            self._shelf.folder.remove_segment(active.segment.name)
            self._shelf.catalogue.remove_segment(active.segment, Changes())

    def give_up(self, segment: Segment, changes: Changes) -> None:
        """Take a segment that nobody writes away, with all that stands there."""
        shelf = self._shelf
        shelf.folder.remove_segment(segment.name)
        shelf.files.forget(segment.name)
        shelf.catalogue.remove_segment(segment, changes)

    def _has_room(self, active: Active, payload_bytes: int) -> bool:
        options = self._shelf.options
        return (
            len(active.segment.keys) < options.segment_pages
            and self._shelf.catalogue.entries < options.max_pages
            and active.writer.has_room(payload_bytes)
        )

    def _write(self, active: Active, header: Header, payload: memoryview, changes: Changes) -> None:
        offset = active.writer.append(pack_header(header), payload)
        active.segment.size_bytes = active.segment.known_bytes = active.writer.tail_bytes
        self._shelf.catalogue.note(active.segment, [Entry(header, offset)], changes)

    def _roll_over(self, changes: Changes) -> Active:
        self.seal()
        self._shelf.survey.list_segments(changes, None)
        self._active = active = self._begin_segment()
        try:
            if self._shelf.options.sync is Sync.EACH_PAGE:
                self._shelf.folder.sync()
            self._make_room(active, changes)
        except OSError:
            self.seal()
            raise
        return active

    def _begin_segment(self) -> Active:
        shelf = self._shelf
        names = [segment.name for segment in shelf.catalogue.segments()]
        for _ in range(_NAME_TRIES):
            name = name_next(names, self._rng)
            with suppress(FileExistsError):
                fd = shelf.folder.create_segment(name)
                writer = SegmentWriter(fd, shelf.options.segment_bytes, shelf.options.sync)
                return Active(shelf.catalogue.segment(name), writer)
        raise OSError(errno.EEXIST, f"{_NAME_TRIES} random names are taken")

    def _make_room(self, active: Active, changes: Changes) -> None:
        shelf = self._shelf
        while self._is_over(active.segment):
            victim = self._pick_victim(active.segment)
            with suppress(OSError):
                self._keep_hot(active, victim, changes)
            self.give_up(victim, changes)
            shelf.survey.counts.add("evicted_segments")

    def _is_over(self, own: Segment) -> bool:
        catalogue, options = self._shelf.catalogue, self._shelf.options
        others_bytes = catalogue.held_bytes() - own.size_bytes
        return (
            others_bytes + options.reserve_bytes > options.capacity_bytes
            or catalogue.entries + options.segment_pages > options.max_pages
            or catalogue.segment_count() > options.max_segments
        )

    def _pick_victim(self, own: Segment) -> Segment:
        """The oldest segment that no living process writes; OSError if there is none."""
        for segment in self._shelf.catalogue.segments():
            if segment is not own and not self._shelf.folder.is_being_written(segment.name):
                return segment
        raise OSError(errno.ENOSPC, "every segment is being written")

    def _keep_hot(self, active: Active, victim: Segment, changes: Changes) -> None:
        shelf = self._shelf
        for key in tuple(victim.keys):
            location = shelf.catalogue.find(key)
            if location is None or location.segment is not victim or not location.is_hot:
                continue
            extent = location.unpack()
            end_bytes = active.writer.tail_bytes + HEADER_BYTES + extent.length_bytes
            if end_bytes > shelf.options.kept_bytes:
                return
            payload = memoryview(bytearray(extent.length_bytes))
            if load_page(shelf.files, key, location, payload) is ReadOutcome.READ:
                location.is_hot = False
                header = page_header(key, extent.origin, payload)
                self._write(active, header, payload, changes)
                shelf.survey.counts.add("kept_pages")
