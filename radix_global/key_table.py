"""Which row belongs to a key: a chained hash table in columns, for whole lists of keys at once.

    bucket = low bits of the key          first[row], second[row]: the key's two words
    heads[bucket] ─▶ row ─ next ─▶ row ─ next ─▶ 0

Keys are hashes already. The size is fixed, so that nothing is ever rebuilt: a growing dictionary of
ten million keys stands still for most of a second when it grows, and weighs several times as much.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bana.radix_global.columns import Column, Rows
from bana.radix_global.keys import count_keys

NO_ROW = 0
# One row a key: its first and its second half.
KeyWords = npt.NDArray[np.uint64]


class KeyTable:
    """Rows 1 to `max_rows`, handed out to keys; row 0 is no key's."""

    def __init__(self, max_rows: int) -> None:
        buckets = 1 << max_rows.bit_length()
        self._bucket_mask = np.uint64(buckets - 1)
        self._heads = Column(buckets, np.int32)
        self._next = Column(max_rows + 1, np.int32)
        self._first = Column(max_rows + 1, np.uint64)
        self._second = Column(max_rows + 1, np.uint64)
        self._free = Column(max_rows, np.int32)
        self._free.many[:] = np.arange(max_rows, 0, -1)
        self.free_rows = max_rows

    def find(self, words: KeyWords) -> Rows:
        """The row of each key, NO_ROW where it is not known. O(keys)."""
        first, second = words[:, 0], words[:, 1]
        rows = self._heads.many[self._buckets(first)].astype(np.int64)
        while True:
            is_other = (self._first.many[rows] != first) | (self._second.many[rows] != second)
            is_other &= rows != NO_ROW
            (others,) = is_other.nonzero()
            if not len(others):
                return rows
            rows[others] = self._next.many[rows[others]]

    def add(self, words: KeyWords) -> Rows:
        """New rows for keys that are distinct, unknown, and no more than `free_rows`."""
        self.free_rows -= len(words)
        rows = self._free.many[self.free_rows : self.free_rows + len(words)].astype(np.int64)
        self._first.many[rows] = words[:, 0]
        self._second.many[rows] = words[:, 1]
        heads, following = self._heads.one, self._next.one
        buckets = self._buckets(words[:, 0]).tolist()
        for row, bucket in zip(rows.tolist(), buckets, strict=True):
            following[row] = heads[bucket]
            heads[bucket] = row
        return rows

    def remove(self, row: int) -> None:
        """Give a row back. Its key can still be read until the next `add`."""
        heads, following = self._heads.one, self._next.one
        bucket = self._first.one[row] & int(self._bucket_mask)
        before = heads[bucket]
        if before == row:
            heads[bucket] = following[row]
        else:
            while following[before] != row:
                before = following[before]
            following[before] = following[row]
        self._free.one[self.free_rows] = row
        self.free_rows += 1

    def _buckets(self, first: npt.NDArray[np.uint64]) -> Rows:
        # Signed numbers are the faster subscripts.
        return (first & self._bucket_mask).view(np.int64)

    def keys_of(self, rows: Rows) -> bytes:
        """The keys of `rows`, end to end."""
        words = np.stack((self._first.many[rows], self._second.many[rows]), axis=1)
        return words.tobytes()


def read_words(keys: bytes) -> KeyWords:
    """Keys written end to end, as two words each; StoreError where the last one is not whole."""
    count = count_keys(keys)
    return np.frombuffer(keys, np.uint64).reshape(count, 2)
