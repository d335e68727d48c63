"""Which outcome an error of the operating system is."""

from __future__ import annotations

import errno

from bana.radix_global.stores.store import ReadOutcome, WriteOutcome

_GONE = frozenset({errno.ENOENT, errno.ESTALE, errno.ELOOP})
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def read_outcome(error: OSError) -> ReadOutcome:
    """ELOOP is a link in a segment's place: the segment is gone."""
    if error.errno in _GONE:
        return ReadOutcome.MISSING
    return ReadOutcome.LATE if error.errno == errno.ETIMEDOUT else ReadOutcome.FAILED


def write_outcome(error: OSError) -> WriteOutcome:
    """FULL covers quotas and file size limits too."""
    if error.errno in _NO_ROOM:
        return WriteOutcome.FULL
    return WriteOutcome.LATE if error.errno == errno.ETIMEDOUT else WriteOutcome.FAILED
