"""Ctrl-C and SIGTERM during a run: the first ends it in order, the second at once."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Iterator

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """`stop` is called on the first signal, KeyboardInterrupt raised on the second.

    Outside the main thread, which alone gets signals, nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    seen: list[int] = []

    def note(number: int) -> None:
        seen.append(number)
        if len(seen) > 1:
            raise KeyboardInterrupt
        stop()

    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number in SIGNALS:
        loop.add_signal_handler(number, note, number)
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            if handler is not None:
                signal.signal(number, handler)
