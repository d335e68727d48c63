"""Wakes a scheduler that has nothing to do until a page arrives, without asking again and again."""

from __future__ import annotations

import contextlib
import os
import select


class WakeBell:
    """A file descriptor that is readable from `ring` until `silence`; any thread may ring."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def ring(self) -> None:
        """Something has happened."""
        # A full counter, or one that was closed while a thread came to its end, rings nobody.
        with contextlib.suppress(OSError):
            os.eventfd_write(self.fd, 1)

    def wait(self, timeout_s: float) -> None:
        """Return when it is rung, or was since it was last silenced, after `timeout_s` at most."""
        poller = select.poll()
        poller.register(self.fd, select.POLLIN)
        poller.poll(timeout_s * 1000)

    def silence(self) -> bool:
        """Whether it was rung; what has happened until now is about to be looked at."""
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            return False
        return True
