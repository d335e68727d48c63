"""An engine's connection to its store daemon: one background thread, and nothing that waits.

AWAY ──Attach──▶ ATTACHED ──daemon gone, silent, or Lost──▶ AWAY ──backoff──▶ …
  └──Attach──▶ REFUSED ──backoff──▶ …

Each connection is a new socket, so that nothing of an earlier one is ever delivered to a later one.
The thread alone talks; engine threads leave messages in the book, under one lock.
"""

from __future__ import annotations

import contextlib
import os
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import zmq

from bana.radix_global.arena_layout import ArenaLayout
from bana.radix_global.arena_view import ArenaView
from bana.radix_global.client_book import ClientBook
from bana.radix_global.client_settings import ClientSettings
from bana.radix_global.keys import Namespace
from bana.radix_global.link import LinkState, Rows, Slot, StoreLink, Want
from bana.radix_global.messages import (
    MAX_MESSAGE_BYTES,
    Attached,
    Detach,
    Event,
    Lost,
    Refused,
    TierWeather,
    decode_event,
    encode,
)
from bana.slo.clock import Clock
from bana.slo.errors import StoreError

MAX_QUEUED_MESSAGES = 20_000
MAX_EVENTS_A_TURN = 256
DETACH_TIMEOUT_S = 2.0
JOIN_TIMEOUT_S = 5.0
MAX_TURN_S = 1.0


class StoreClient(StoreLink):
    """See StoreLink. `wake` is called from the thread whenever a want went on, or was lost.

    `tell` hears of every other state than before, and why it is that, from the thread too.
    """

    def __init__(
        self,
        settings: ClientSettings,
        clock: Clock,
        wake: Callable[[], None],
        tell: Callable[[LinkState, str], None] = lambda state, reason: None,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._wake = wake
        self._tell = tell
        self._book = ClientBook(settings, uuid.uuid4().bytes)
        self._lock = threading.Lock()
        self._mapped: ArenaView | None = None
        self._state = LinkState.AWAY
        self._reason = "the store was not asked yet"
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bana-store", daemon=True)

    def start(self) -> None:
        """Look for the daemon from now on; called once."""
        self._thread.start()

    @property
    def state(self) -> LinkState:
        return self._state

    @property
    def reason(self) -> str:
        return self._reason

    @property
    def tiers(self) -> tuple[TierWeather, ...]:
        return self._book.tiers

    @property
    def counts(self) -> Mapping[str, int]:
        with self._lock:
            return dict(self._book.counts)

    def prefetch(
        self, keys: bytes, due_s: float, deadline_s: float, await_until_s: float = 0.0
    ) -> Want:
        with self._talking():
            return self._book.prefetch(keys, due_s, deadline_s, await_until_s)

    def announce(self, keys: bytes) -> int:
        with self._talking():
            return self._book.announce(keys)

    def withdraw(self, number: int) -> None:
        with self._talking():
            self._book.withdraw(number)

    def cancel(self, want: Want) -> None:
        with self._talking():
            self._book.cancel(want)

    def release(self, want: Want) -> None:
        with self._talking():
            self._book.release(want)

    def take_slots(self, count: int) -> tuple[Slot, ...] | None:
        with self._talking():
            return self._book.take_slots(count)

    def give_back(self, slots: Sequence[Slot]) -> None:
        with self._talking():
            self._book.give_back(slots)

    def publish(self, after: bytes, keys: bytes, slots: Sequence[Slot]) -> None:
        with self._talking():
            self._book.publish(after, keys, slots)

    def view(self, slot: Slot) -> memoryview | None:
        mapped = self._mapped
        if mapped is None or mapped.epoch != slot.epoch:
            return None
        # It may have been closed since.
        with contextlib.suppress(ValueError, StoreError):
            return mapped.view(slot.number)
        return None

    def rows(self, epoch: int) -> Rows | None:
        mapped = self.arena(epoch)
        # It may have been closed since.
        with contextlib.suppress(StoreError):
            return None if mapped is None else mapped.rows
        return None

    def is_valid(self, slot: Slot) -> bool:
        mapped = self._mapped
        if mapped is None or mapped.epoch != slot.epoch:
            return False
        with contextlib.suppress(ValueError):
            return mapped.generation(slot.number) == slot.generation
        return False

    def arena(self, epoch: int) -> ArenaView | None:
        """The whole arena of that life of the daemon, None where it is gone."""
        mapped = self._mapped
        return mapped if mapped is not None and mapped.epoch == epoch else None

    def enter(self, namespace: Namespace) -> None:
        with self._talking():
            self._book.enter(namespace)

    def close(self) -> None:
        if self._closing.is_set():
            return
        self._closing.set()
        with self._lock:
            self._ring()
        if self._thread.is_alive():
            self._thread.join(JOIN_TIMEOUT_S)
        with self._lock:
            self._book.lose()
            # Nobody rings it from here on: a book that is not attached has nothing to send.
            if not self._thread.is_alive():
                os.close(self._bell)
        self._unmap()
        self._state, self._reason = LinkState.CLOSED, "the client was closed"

    # The thread

    def _run(self) -> None:
        backoff_s = self._settings.backoff_initial_s
        with zmq.Context() as context:
            while not self._closing.is_set():
                try:
                    was_attached = self._live(context)
                except Exception as error:
                    # Whatever it is: the engine goes on without a store until it is there again.
                    was_attached = self._lose(LinkState.AWAY, f"{type(error).__name__}: {error}")
                if was_attached:
                    backoff_s = self._settings.backoff_initial_s
                self._closing.wait(backoff_s)
                backoff_s = min(2 * backoff_s, self._settings.backoff_max_s)

    def _live(self, context: zmq.Context[zmq.Socket[bytes]]) -> bool:
        """One connection from its beginning to its end; whether it ever stood."""
        with context.socket(zmq.DEALER) as socket:
            _bound(socket)
            monitor = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
            try:
                socket.connect(self._settings.endpoint)
                poller = zmq.Poller()
                for source in (socket, monitor, self._bell):
                    poller.register(source, zmq.POLLIN)
                why = self._attach(socket, monitor, poller)
                if why is not None:
                    return self._lose(*why)
                reason = self._serve(socket, monitor, poller)
                return self._lose(LinkState.AWAY, reason)
            finally:
                socket.disable_monitor()
                monitor.close(linger=0)

    def _attach(
        self, socket: zmq.Socket[bytes], monitor: zmq.Socket[bytes], poller: zmq.Poller
    ) -> tuple[LinkState, str] | None:
        """None once attached, else what the client is and why."""
        with self._lock:
            hello = self._book.describe_self()
        socket.send(encode(hello), zmq.NOBLOCK)
        end_s = self._clock.now_s() + self._settings.attach_timeout_s
        while (left_s := end_s - self._clock.now_s()) > 0 and not self._closing.is_set():
            ready = dict(poller.poll(_to_ms(left_s)))
            self._drain_bell()
            if monitor in ready:
                break
            for event in _receive(socket):
                match event:
                    case Refused():
                        return LinkState.REFUSED, event.reason
                    case Attached():
                        self._enter_life(event)
                        return None
        return LinkState.AWAY, f"{self._settings.endpoint} has not answered"

    def _enter_life(self, event: Attached) -> None:
        self._mapped = map_arena(event)
        with self._lock:
            self._book.note_attached(event)
        self._enter_state(LinkState.ATTACHED, "")

    def _serve(
        self, socket: zmq.Socket[bytes], monitor: zmq.Socket[bytes], poller: zmq.Poller
    ) -> str:
        """Pass messages until the connection ends; why it did."""
        silent_s, turn_s = 0.0, self._clock.now_s()
        while True:
            now_s = self._clock.now_s()
            # What this process itself was stopped for is no silence of the daemon's.
            silent_s += min(now_s - turn_s, MAX_TURN_S)
            turn_s = now_s
            if silent_s > self._settings.silent_after_s:
                return f"the store has said nothing for {silent_s:.1f} s"
            trouble = self._send(socket, now_s)
            if trouble is not None:
                return trouble
            ready = dict(poller.poll(_to_ms(self._next_wake_s() - now_s)))
            self._drain_bell()
            if monitor in ready:
                return "the store daemon has gone away"
            went_on = False
            for event in _receive(socket):
                silent_s = 0.0
                if isinstance(event, Lost):
                    return "the store has struck this client out"
                with self._lock:
                    went_on = self._book.note_event(event) or went_on
            if went_on:
                self._call_wake()

    def _send(self, socket: zmq.Socket[bytes], now_s: float) -> str | None:
        if self._closing.is_set():
            self._detach(socket)
            return "the client is closed"
        with self._lock:
            requests = self._book.take_unsent(now_s)
        if requests is None:
            return "too many messages wait to be sent"
        try:
            for request in requests:
                socket.send(encode(request), zmq.NOBLOCK)
        except zmq.Again:
            return "the store does not take messages"
        return None

    def _detach(self, socket: zmq.Socket[bytes]) -> None:
        """Say goodbye, and stay until that was heard: a socket that closes drops what it holds."""
        with contextlib.suppress(zmq.Again):
            socket.send(encode(Detach()), zmq.NOBLOCK)
        end_s = self._clock.now_s() + DETACH_TIMEOUT_S
        while (left_s := end_s - self._clock.now_s()) > 0 and socket.poll(_to_ms(left_s)):
            if any(isinstance(event, Lost) for event in _receive(socket)):
                return

    def _lose(self, state: LinkState, reason: str) -> bool:
        with self._lock:
            was_attached = self._book.is_attached
            was_hit = self._book.lose()
        # The same arena is mapped anew where it turns out to live on.
        self._unmap()
        self._enter_state(state, reason)
        if was_hit:
            self._call_wake()
        return was_attached

    def _enter_state(self, state: LinkState, reason: str) -> None:
        is_news = (state, reason) != (self._state, self._reason)
        self._state, self._reason = state, reason
        if is_news:
            with contextlib.suppress(Exception):
                self._tell(state, reason)

    def _call_wake(self) -> None:
        try:
            self._wake()
        except Exception:
            # The engine's fault must not end its store; it is counted, and the engine polls too.
            with self._lock:
                self._book.counts["wake_faults"] += 1

    def _next_wake_s(self) -> float:
        with self._lock:
            return self._book.next_wake_s()

    @contextlib.contextmanager
    def _talking(self) -> Iterator[None]:
        """The book, locked; the thread is told when there is something new to send."""
        with self._lock:
            before = self._book.unsent
            yield
            if self._book.unsent != before:
                self._ring()

    def _ring(self) -> None:
        # A full counter rings already.
        with contextlib.suppress(BlockingIOError):
            os.eventfd_write(self._bell, 1)

    def _drain_bell(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._bell)

    def _unmap(self) -> None:
        """Give the arena up; it stays until the last view of a slot is gone."""
        mapped, self._mapped = self._mapped, None
        if mapped is not None:
            mapped.close()


def map_arena(event: Attached) -> ArenaView:
    """The arena that was announced; ConfigError or StoreError where it is not that one."""
    view = ArenaView(Path(event.arena_path))
    if (view.epoch, view.layout) != (event.epoch, ArenaLayout(event.slots, event.slot_bytes)):
        view.close()
        raise StoreError(f"arena {event.arena_path} is not the one announced; attach again")
    return view


def _bound(socket: zmq.Socket[bytes]) -> None:
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, MAX_QUEUED_MESSAGES)
    socket.setsockopt(zmq.RCVHWM, MAX_QUEUED_MESSAGES)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
    socket.setsockopt(zmq.RECONNECT_IVL, 50)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)


def _receive(socket: zmq.Socket[bytes]) -> Iterator[Event]:
    """What has come, up to a bound, so that sending has its turn."""
    for _ in range(MAX_EVENTS_A_TURN):
        try:
            frame = socket.recv(zmq.NOBLOCK)
        except zmq.Again:
            return
        yield decode_event(frame)


def _to_ms(duration_s: float) -> int:
    """Rounded up, so that a wait never ends just before its time, and at least now."""
    return max(0, int(duration_s * 1000) + 1)
