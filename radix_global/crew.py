"""Threads that wait for work under one lock, are rung for when there is some, and end together."""

from __future__ import annotations

import threading
from collections.abc import Callable

from bana.slo.clock import Clock


class Crew:
    """Threads of one owner: hired before `start`, told to end by `dismiss`, and waited for.

    `lock` guards whatever they decide about. They are daemons: one that is stuck in a storage does
    not keep its process.
    """

    def __init__(self, clock: Clock) -> None:
        self.lock = threading.Lock()
        self.is_dismissed = False
        self._clock = clock
        self._bells: list[threading.Condition] = []
        self._threads: list[threading.Thread] = []

    def hang_bell(self) -> threading.Condition:
        """A new bell, on which some of them wait under `lock`; `dismiss` rings it too."""
        bell = threading.Condition(self.lock)
        self._bells.append(bell)
        return bell

    def hire(self, name: str, work: Callable[[], None]) -> None:
        """One thread more, which returns from `work` once `is_dismissed`."""
        self._threads.append(threading.Thread(target=work, name=name, daemon=True))

    def start(self) -> None:
        """Begin; call once."""
        for thread in self._threads:
            thread.start()

    def rest(self, bell: threading.Condition, most_s: float) -> None:
        """Under `lock`: wait for the bell, `most_s` at most, not at all once they are dismissed."""
        if not self.is_dismissed and most_s > 0:
            bell.wait(most_s)

    def dismiss(self) -> None:
        """Under `lock`: have all come to their end."""
        self.is_dismissed = True
        for bell in self._bells:
            bell.notify_all()

    def join(self, timeout_s: float) -> int:
        """Without `lock`: wait for their end; how many are stuck after `timeout_s`."""
        end_s = self._clock.now_s() + timeout_s
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, end_s - self._clock.now_s()))
        return sum(thread.is_alive() for thread in self._threads)
