"""A thread that does jobs in the order in which they were offered."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

J = TypeVar("J")
logger = logging.getLogger(__name__)


class JobThread(Generic[J]):
    """Does at most `most` waiting jobs one by one; `work` must not raise, and is reported if it
    does. The thread starts with the first job and ends with the process, or at `close`.
    """

    def __init__(self, name: str, work: Callable[[J], None], most: int) -> None:
        self._name = name
        self._work = work
        self._most = most
        self._jobs: deque[tuple[J, int]] = deque()
        self._changed = threading.Condition()
        self._unfinished = self._counted = 0
        self._is_closing = False
        self._thread: threading.Thread | None = None

    def offer(self, job: J) -> bool:
        """Whether the job will be done; False when too many wait, or after `close`."""
        with self._changed:
            return self._counted < self._most and self._put(job, 1)

    def follow(self, job: J) -> bool:
        """The same for a job that takes no other one's place, however many wait; its caller bounds
        how many there are.
        """
        with self._changed:
            return self._put(job, 0)

    def _put(self, job: J, counted: int) -> bool:
        if self._is_closing:
            return False
        self._jobs.append((job, counted))
        self._unfinished += 1
        self._counted += counted
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._changed.notify_all()
        return True

    def settle(self, timeout_s: float) -> bool:
        """Whether every job was done within `timeout_s`."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._unfinished, timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Take no more jobs; whether the thread ended within `timeout_s`."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(timeout_s)
            return not self._thread.is_alive()
        return True

    def _run(self) -> None:
        while (found := self._next()) is not None:
            job, counted = found
            try:
                self._work(job)
            except Exception:
                logger.exception("bana: %s failed at a job", self._name)
            finally:
                with self._changed:
                    self._unfinished -= 1
                    self._counted -= counted
                    self._changed.notify_all()

    def _next(self) -> tuple[J, int] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._is_closing)
            return self._jobs.popleft() if self._jobs else None
