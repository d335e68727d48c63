"""A tier in one folder of a local disk or a mounted file system, shared by processes and hosts."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

from bana.radix_global.stores.appending import Appender, Shelf
from bana.radix_global.stores.catalogue import Catalogue, Changes, Location
from bana.radix_global.stores.clearing import Clearing
from bana.radix_global.stores.descriptors import OpenFiles
from bana.radix_global.stores.faults import write_outcome
from bana.radix_global.stores.folder import Folder
from bana.radix_global.stores.loading import load_page
from bana.radix_global.stores.losses import Losses
from bana.radix_global.stores.options import DirectoryOptions
from bana.radix_global.stores.page import drop_header, pack_origin, page_header
from bana.radix_global.stores.store import (
    HeldPage,
    Moment,
    PageOrigin,
    Payload,
    ReadOutcome,
    Refresh,
    RefreshOutcome,
    StoreStats,
    Write,
    WriteOutcome,
    check_key,
    view_bytes,
)
from bana.radix_global.stores.survey import Survey
from bana.slo.errors import ConfigError

_NOT_THERE = (ReadOutcome.MISSING, ReadOutcome.SHORT, ReadOutcome.CORRUPT)


class DirectoryStore:
    """Pages in append-only segments; README.md has the format, the bounds and the trade-offs.

    A new store knows nothing: `refresh`, called until WHOLE, recovers what the folder holds.
    `rng` names segments, and must differ between processes. ConfigError where the folder or the
    capacity cannot be had.
    """

    def __init__(self, path: Path, options: DirectoryOptions, rng: Random) -> None:
        self._options = options
        self._folder = Folder(path)
        self._files = OpenFiles(self._folder.open_segment, options.max_open_segments)
        self._catalogue = Catalogue()
        self._survey = Survey(self._folder, self._files, self._catalogue, options)
        self._counts = self._survey.counts
        shelf = Shelf(self._folder, self._files, self._catalogue, self._survey, options)
        self._appender = Appender(shelf, rng)
        self._clearing = Clearing(shelf, self._appender)
        self._losses = Losses()
        self._is_closed = False
        # Held by whoever changes the folder or looks at all of it; a read never waits for it.
        self._changing = threading.Lock()
        self._check_capacity()

    def put(self, key: bytes, payload: Payload, origin: PageOrigin) -> Write:
        """See Store; a page longer than `max_payload_bytes` is REFUSED."""
        check_key(key)
        data = view_bytes(payload)
        if not 0 < data.nbytes <= self._options.max_payload_bytes:
            return Write(WriteOutcome.REFUSED)
        settled = self._settle_put(key)
        if settled is not None:
            return Write(settled)
        header = page_header(key, pack_origin(key, origin), data)
        with self._changing:
            settled = self._settle_put(key)
            if settled is not None:
                return Write(settled)
            changes = Changes()
            try:
                self._appender.append(header, data, changes)
            except OSError as error:
                return Write(write_outcome(error), changes.lost)
        return Write(WriteOutcome.WRITTEN, changes.lost)

    def read(self, key: bytes, target: memoryview) -> ReadOutcome:
        """See Store; reads of one page by several threads do not wait for each other either."""
        check_key(key)
        view = view_bytes(target)
        if self._is_closed:
            return ReadOutcome.FAILED
        location = self._catalogue.find(key)
        if location is None:
            return ReadOutcome.MISSING
        outcome = self._read_at(key, location, view)
        if outcome is not ReadOutcome.MISSING:
            return outcome
        # An eviction that ran meanwhile may have kept the page, in a newer segment.
        moved = self._catalogue.find(key)
        return outcome if moved is None else self._read_at(key, moved, view)

    def holds(self, key: bytes) -> bool:
        """See Store."""
        return self._catalogue.find(key) is not None

    def pages(self) -> list[HeldPage]:
        """See Store."""
        return self._catalogue.pages()

    def pages_before(self, moment: Moment) -> list[HeldPage]:
        """See Store: a page is as old as the last write to its segment. O(segments + pages)."""
        pages: list[HeldPage] = []
        for segment in self._catalogue.segments():
            with suppress(OSError):
                if self._folder.written_s(segment.name) < moment.date_s:
                    pages += self._catalogue.pages_at(segment)
        return pages

    def drop(self, key: bytes) -> Write:
        """See Store; after any other outcome than DROPPED it may be there again when reopened."""
        check_key(key)
        with self._changing:
            if self._is_closed:
                return Write(WriteOutcome.FAILED)
            location = self._catalogue.find(key)
            if location is None:
                return Write(WriteOutcome.MISSING)
            changes = Changes()
            outcome = WriteOutcome.DROPPED
            try:
                self._appender.start_behind(location.segment, changes)
                self._appender.append(drop_header(key), memoryview(b""), changes)
            except OSError as error:
                outcome = write_outcome(error)
            self._catalogue.discard(key)
            return Write(outcome, tuple(lost for lost in changes.lost if lost != key))

    def drop_many(self, keys: Collection[bytes]) -> Iterator[Write]:
        """See Store: whole segments are unlinked, from the oldest on, while all in them is to go.

        O(segments + pages) for those; a mark for each page of the others.
        """
        wanted = dict.fromkeys(keys)
        yield from self._remove_segments(wanted)
        for key in wanted:
            write = self.drop(key)
            if write.outcome is not WriteOutcome.MISSING:
                yield Write(write.outcome, (key, *write.lost))

    def refresh(self) -> Refresh:
        """See Store; O(segments) and at most `scan_pages` headers."""
        with self._changing:
            if self._is_closed:
                return Refresh(RefreshOutcome.FAILED)
            changes = Changes()
            try:
                self._survey.list_segments(changes, self._appender.segment)
                self._appender.leave_vanished()
            except OSError:
                self._counts.add("failed_listings")
                return Refresh(RefreshOutcome.FAILED, changes.found, changes.lost)
            is_whole = self._survey.scan(changes, self._appender.segment)
        outcome = RefreshOutcome.WHOLE if is_whole else RefreshOutcome.PARTIAL
        gone = tuple(key for key in self._losses.take() if not self.holds(key))
        return Refresh(outcome, changes.found, changes.lost + gone)

    def stats(self) -> StoreStats:
        """See Store; `held_bytes` are those of all segments, whoever wrote them."""
        return StoreStats(
            pages=len(self._catalogue),
            held_bytes=self._catalogue.held_bytes(),
            capacity_bytes=self._options.capacity_bytes,
            counts={**self._counts.snapshot(), **self._survey.distrusted},
        )

    def close(self) -> None:
        """See Store; reads that are under way come to their end."""
        with self._changing:
            self._is_closed = True
            with suppress(OSError):
                self._appender.seal()
            self._files.close()
            self._folder.close()

    def _remove_segments(self, wanted: Collection[bytes]) -> Iterator[Write]:
        """Writers have their turn between any two segments."""
        for segment in self._catalogue.segments():
            changes, is_gone = Changes(), False
            with self._changing, suppress(OSError):
                is_gone = not self._is_closed and self._clearing.remove(segment, wanted, changes)
            if not is_gone:
                return
            yield Write(WriteOutcome.DROPPED, changes.lost)

    def _settle_put(self, key: bytes) -> WriteOutcome | None:
        """What is answered without writing anything."""
        if self._is_closed:
            return WriteOutcome.FAILED
        return WriteOutcome.PRESENT if self.holds(key) else None

    def _read_at(self, key: bytes, location: Location, target: memoryview) -> ReadOutcome:
        outcome = load_page(self._files, key, location, target)
        if outcome is ReadOutcome.READ:
            location.is_hot = True
        elif outcome in _NOT_THERE and self._catalogue.forget(key, location):
            self._counts.add(f"{outcome}_pages")
            self._losses.add(key)
        return outcome

    def _check_capacity(self) -> None:
        """Refuse a capacity that the file system could never hold."""
        capacity_bytes = self._options.capacity_bytes
        try:
            self._survey.list_segments(Changes(), None)
            allowed_bytes = self._folder.free_bytes() + self._catalogue.held_bytes()
            if capacity_bytes <= allowed_bytes:
                return
            problem = f"capacity_bytes {capacity_bytes}, allowed: <= {allowed_bytes}, which is free"
        except OSError as error:
            problem = f"{error.strerror}"
        self.close()
        raise ConfigError(f"store directory: {problem}; lower the capacity, or name another")
