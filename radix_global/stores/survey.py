"""What stands in the folder by now: segments that came, grew or went, entry by entry."""

from __future__ import annotations

import os
from collections.abc import Mapping

from bana.radix_global.stores.catalogue import Catalogue, Changes, Segment
from bana.radix_global.stores.counts import Counts
from bana.radix_global.stores.descriptors import OpenFiles
from bana.radix_global.stores.folder import Folder
from bana.radix_global.stores.options import DirectoryOptions
from bana.radix_global.stores.recovery import Scan, ScanEnd, scan_segment

_BAD_ENDS = (ScanEnd.DAMAGED, ScanEnd.WRONG_VERSION)


class Survey:
    """Keeps the catalogue in step with the folder; one caller at a time."""

    def __init__(
        self, folder: Folder, files: OpenFiles, catalogue: Catalogue, options: DirectoryOptions
    ) -> None:
        self._folder = folder
        self._files = files
        self._catalogue = catalogue
        self._options = options
        self.counts = Counts()
        self.distrusted: Mapping[str, int] = {}

    def list_segments(self, changes: Changes, own: Segment | None) -> None:
        """Take over which segments there are and how large; OSError if the folder is gone.

        `own` is still being written: its writer knows its size better.
        """
        listing = self._folder.list_segments(2 * self._options.max_segments)
        self.distrusted = listing.distrusted
        for segment in self._catalogue.segments():
            if segment.name not in listing.sizes_bytes:
                self._catalogue.remove_segment(segment, changes)
                self._files.forget(segment.name)
        for name, size_bytes in listing.sizes_bytes.items():
            if own is None or name != own.name:
                self._catalogue.segment(name).size_bytes = size_bytes

    def scan(self, changes: Changes, own: Segment | None) -> bool:
        """Take over at most `scan_pages` new entries, the oldest segments first; True if all.

        That order lets a mark that a page was dropped come after the page it is about.
        """
        left = self._options.scan_pages
        for segment in self._catalogue.segments():
            if segment is own or segment.known_bytes >= segment.size_bytes:
                continue
            room = max(0, self._options.max_pages - self._catalogue.entries)
            scan = self._scan(segment, min(left, room))
            if scan is None:
                continue
            self._catalogue.note(segment, scan.entries, changes)
            left -= len(scan.entries)
            if scan.end is ScanEnd.PAUSED and left > 0:
                self.counts.add("scans_beyond_max_pages")
                return True
            if scan.end is ScanEnd.PAUSED:
                return False
        return True

    def is_known(self, segment: Segment) -> bool:
        """Whether no entry has been added to `segment` since it was scanned; asks the storage.

        What stands behind a bad or torn entry is none.
        """
        if segment.is_damaged:
            return True
        try:
            file = self._files.acquire(segment.name)
            try:
                size_bytes = os.fstat(file.fd).st_size
                return not scan_segment(file.fd, segment.known_bytes, size_bytes, 1).entries
            finally:
                file.release()
        except OSError:
            return False

    def _scan(self, segment: Segment, limit: int) -> Scan | None:
        try:
            file = self._files.acquire(segment.name)
            try:
                scan = scan_segment(file.fd, segment.known_bytes, segment.size_bytes, limit)
            finally:
                file.release()
        except OSError:
            self.counts.add("unreadable_segments")
            return None
        segment.known_bytes = scan.next_offset
        if scan.end in _BAD_ENDS and not segment.is_damaged:
            segment.is_damaged = True
            self.counts.add(f"{scan.end}_segments")
        return scan
