"""File descriptors that several threads share: closed once, and never while one is used."""

from __future__ import annotations

import errno
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Descriptor:
    """An open file that is closed when it has been retired and its last user is done."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._users = 0
        self._retired = False
        self._lock = threading.Lock()

    def acquire(self) -> None:
        """Make `fd` valid until `release`; OSError once retired."""
        with self._lock:
            if self._retired:
                raise OSError(errno.EBADF, "the store is closed")
            self._users += 1

    def release(self) -> None:
        """One user is done."""
        with self._lock:
            self._users -= 1
            last = self._retired and self._users == 0
        if last:
            os.close(self.fd)

    def retire(self) -> None:
        """Let nobody in any more; idempotent."""
        with self._lock:
            last = not self._retired and self._users == 0
            self._retired = True
        if last:
            os.close(self.fd)

    @contextmanager
    def use(self) -> Iterator[int]:
        """The descriptor for the length of a block."""
        self.acquire()
        try:
            yield self.fd
        finally:
            self.release()


class OpenFiles:
    """At most `limit` files kept open by name, the least recently used given up first.

    Files in use are beyond the limit, and there are as many as threads that read.
    """

    def __init__(self, open_file: Callable[[str], int], limit: int) -> None:
        self._open_file = open_file
        self._limit = limit
        self._kept: OrderedDict[str, Descriptor] = OrderedDict()
        self._closed = False
        self._forgotten = 0
        self._lock = threading.Lock()

    def acquire(self, name: str) -> Descriptor:
        """The open file `name`, to be released; OSError where it cannot be opened."""
        with self._lock:
            known = self._kept.get(name)
            if known is not None:
                self._kept.move_to_end(name)
                known.acquire()
                return known
            forgotten = self._forgotten
        # Opening may take as long as the storage likes: nobody waits for it here.
        fresh = Descriptor(self._open_file(name))
        fresh.acquire()
        for surplus in self._keep(name, fresh, forgotten):
            surplus.retire()
        return fresh

    def forget(self, name: str) -> None:
        """Keep the file `name` open no longer."""
        with self._lock:
            self._forgotten += 1
            known = self._kept.pop(name, None)
        if known is not None:
            known.retire()

    def close(self) -> None:
        """Keep nothing open, now or later."""
        with self._lock:
            self._closed = True
            kept = list(self._kept.values())
            self._kept.clear()
        for descriptor in kept:
            descriptor.retire()

    def _keep(self, name: str, fresh: Descriptor, forgotten: int) -> list[Descriptor]:
        """Keep `fresh` for the next readers; what is not kept, or no longer, is returned."""
        with self._lock:
            # A file forgotten while it was being opened would stay open, and its space taken.
            if self._closed or name in self._kept or forgotten != self._forgotten:
                return [fresh]
            self._kept[name] = fresh
            if len(self._kept) <= self._limit:
                return []
            return [self._kept.popitem(last=False)[1]]
