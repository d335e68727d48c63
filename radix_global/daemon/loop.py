"""The daemon's one thread: it waits for messages, outcomes, deaths and deadlines, in turns.

    socket ── requests ──▶ books ──▶ outbox ──▶ socket
    bell ──── reads, writes, news of chores ──▲
    pidfds ── proven deaths ──────────────────┤
    the clock ── deadlines ───────────────────┘
    stop ──▶ the end

Each turn takes a bounded number of everything. Nothing that it calls waits for a storage. Events
for a client that does not read them pile up to a bound in its pipe; then it is cut off.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Sequence

import msgspec
import zmq

from bana.radix_global.admin_messages import Ask
from bana.radix_global.daemon.books import StoreBooks
from bana.radix_global.daemon.chores import TierChores
from bana.radix_global.daemon.desk import Desk
from bana.radix_global.daemon.works import Works
from bana.radix_global.messages import MAX_MESSAGE_BYTES, decode_request, encode
from bana.slo.clock import Clock
from bana.slo.errors import StoreError

MAX_UNREAD_EVENTS = 4096
MAX_REQUESTS_A_TURN = 256
WEATHER_S = 0.05
# What ends a wait that nothing else does.
IDLE_S = 1.0


class Parts(msgspec.Struct, frozen=True):
    """What the loop passes messages between. `bell` is an eventfd that threads ring."""

    books: StoreBooks
    desk: Desk
    works: Works
    chores: Sequence[TierChores]
    bell: int
    clock: Clock


class DaemonLoop:
    """Serves on a socket, which it owns, until `stop`, a descriptor, is readable."""

    def __init__(self, parts: Parts, socket: zmq.Socket[bytes], stop: int) -> None:
        self._parts = parts
        self._socket = socket
        self._stop = stop
        self._poller = zmq.Poller()
        self._watched: set[int] = set()
        self._weather_s = -math.inf
        self._begun = 0
        for source in (socket, parts.bell, stop):
            self._poller.register(source, zmq.POLLIN)

    def run(self) -> None:
        """Serve; return once told to stop."""
        is_idle = True
        while True:
            timeout_ms = self._timeout_ms() if is_idle else 0
            ready = {source for source, _ in self._poller.poll(timeout_ms)}
            if self._stop in ready:
                return
            is_idle = self._turn(ready)

    def _turn(self, ready: set[object]) -> bool:
        """Take in what is there; whether there may be nothing more."""
        books, works = self._parts.books, self._parts.works
        begun_s = self._parts.clock.now_s()
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._parts.bell)
        for descriptor in self._watched & ready:
            books.bury(descriptor)
        is_idle = self._receive(begun_s)
        books.note_reads(works.take_reads(), begun_s)
        books.note_written(works.take_written())
        for chores in self._parts.chores:
            news = chores.take_news()
            if news is not None:
                is_idle = False
                self._parts.desk.note_news(news)
        self._look_at_weather(begun_s)
        books.tick(begun_s)
        self._parts.desk.tick(begun_s)
        self._send()
        self._watch_owners()
        took_s = self._parts.clock.now_s() - begun_s
        books.longest_turn_s = max(books.longest_turn_s, took_s)
        return is_idle and not (self._parts.desk.is_busy or books.is_busy)

    def _receive(self, now_s: float) -> bool:
        """Hear what has come, up to a bound; whether that was all."""
        books = self._parts.books
        for _ in range(MAX_REQUESTS_A_TURN):
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return True
            try:
                route, frame = frames
                request = decode_request(frame)
            except (ValueError, StoreError):
                books.counts["malformed_messages"] += 1
                continue
            if isinstance(request, Ask):
                self._parts.desk.ask(route, request, now_s)
            else:
                # A burst: each is told what the ones before it wait for.
                self._look_at_weather(now_s)
                books.hear(route, request, now_s)
        return False

    def _send(self) -> None:
        """Send all events; whoever cannot be reached, or does not read, is cut off."""
        books = self._parts.books
        while books.outbox:
            outbox, books.outbox = books.outbox, []
            for route, event in outbox:
                try:
                    self._socket.send_multipart([route, encode(event)], zmq.NOBLOCK)
                except zmq.ZMQError:
                    books.counts["undelivered_events"] += 1
                    books.cut(route, "it does not take its events")

    def _look_at_weather(self, now_s: float) -> None:
        floor = self._parts.books.floor
        begun = 0 if floor is None else floor.readings.begun
        if begun != self._begun or now_s - self._weather_s >= WEATHER_S:
            self._weather_s, self._begun = now_s, begun
            self._parts.books.weather = self._parts.works.weather()

    def _watch_owners(self) -> None:
        """Watch the processes of those who are attached now."""
        wanted = set(self._parts.books.owners.descriptors())
        for descriptor in self._watched - wanted:
            self._poller.unregister(descriptor)
        for descriptor in wanted - self._watched:
            self._poller.register(descriptor, zmq.POLLIN)
        self._watched = wanted

    def _timeout_ms(self) -> int:
        deadline_s = self._parts.books.next_deadline_s()
        left_s = IDLE_S if deadline_s is None else deadline_s - self._parts.clock.now_s()
        return max(0, math.ceil(min(left_s, IDLE_S) * 1000))


def open_socket(context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> zmq.Socket[bytes]:
    """The socket that clients and administrators talk to; zmq.ZMQError where it cannot be had."""
    socket = context.socket(zmq.ROUTER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    socket.setsockopt(zmq.SNDHWM, MAX_UNREAD_EVENTS)
    socket.setsockopt(zmq.RCVHWM, MAX_UNREAD_EVENTS)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
    socket.bind(endpoint)
    return socket
