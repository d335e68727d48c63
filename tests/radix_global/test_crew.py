"""Threads that end together, or are told to be stuck."""

from __future__ import annotations

import threading
import time

from bana.radix_global.crew import Crew

DEADLINE_S = 20.0


class RealClock:
    def now_s(self) -> float:
        return time.monotonic()


def test_a_bell_wakes_one_and_a_dismissal_all() -> None:
    crew, worked = Crew(RealClock()), threading.Semaphore(0)
    bells = [crew.hang_bell() for _ in range(3)]
    rested = []

    def work(number: int) -> None:
        with crew.lock:
            while not crew.is_dismissed:
                worked.release()
                crew.rest(bells[number], DEADLINE_S)
            rested.append(number)

    for number in range(3):
        crew.hire(f"hand-{number}", lambda number=number: work(number))
    crew.start()
    for _ in range(3):
        assert worked.acquire(timeout=DEADLINE_S)
    with crew.lock:
        bells[1].notify()
    assert worked.acquire(timeout=DEADLINE_S)
    assert not worked.acquire(blocking=False)
    with crew.lock:
        crew.dismiss()
    assert crew.join(DEADLINE_S) == 0
    assert sorted(rested) == [0, 1, 2]


def test_nobody_rests_after_the_dismissal() -> None:
    crew = Crew(RealClock())
    bell = crew.hang_bell()
    with crew.lock:
        crew.dismiss()
        # Without that it would wait for ever: nobody rings any more.
        crew.rest(bell, 1e6)


def test_those_that_are_stuck_are_counted_and_left_behind() -> None:
    crew, storage = Crew(RealClock()), threading.Event()
    crew.hire("stuck", lambda: storage.wait(DEADLINE_S) and None)
    crew.hire("free", lambda: None)
    crew.start()
    with crew.lock:
        crew.dismiss()
    assert crew.join(0.05) == 1
    storage.set()
    assert crew.join(DEADLINE_S) == 0


def test_a_crew_that_never_began_is_at_its_end() -> None:
    crew = Crew(RealClock())
    crew.hire("idle", lambda: None)
    assert crew.join(0.0) == 0
