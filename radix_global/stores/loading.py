"""Reading one page from its segment, straight into where it is wanted."""

from __future__ import annotations

import os

from bana.radix_global.stores.catalogue import Location
from bana.radix_global.stores.descriptors import OpenFiles
from bana.radix_global.stores.faults import read_outcome
from bana.radix_global.stores.page import HEADER_BYTES, judge_page
from bana.radix_global.stores.store import ReadOutcome


def load_page(files: OpenFiles, key: bytes, location: Location, target: memoryview) -> ReadOutcome:
    """Fill `target` and verify it; the GIL is released meanwhile."""
    extent = location.unpack()
    if extent.length_bytes != target.nbytes:
        return ReadOutcome.WRONG_LENGTH
    header = bytearray(HEADER_BYTES)
    try:
        file = files.acquire(location.segment.name)
        try:
            got = _fill(file.fd, header, target, extent.offset)
        finally:
            file.release()
    except OSError as error:
        return read_outcome(error)
    if got < HEADER_BYTES + target.nbytes:
        return ReadOutcome.SHORT
    return judge_page(header, key, extent.origin, target)


def _fill(fd: int, header: bytearray, target: memoryview, offset: int) -> int:
    """How many bytes of header and target there were; the kernel may hand them out in parts."""
    got = os.preadv(fd, [header, target], offset)
    while HEADER_BYTES <= got < HEADER_BYTES + target.nbytes:
        more = os.preadv(fd, [target[got - HEADER_BYTES :]], offset + got)
        if more == 0:
            break
        got += more
    return got
