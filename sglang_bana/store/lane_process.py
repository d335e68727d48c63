"""One lane's process: started at need, asked, and killed when it is late.

NONE ──start──▶ STARTING ──says that it is up──▶ UP ──call──▶ UP
  ▲                └── not in time, or not ──┐     └─ late, broken ─┐
  └───────────── a rest, so that no storm of starts ────────────────┘
"""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import subprocess
import sys
from collections.abc import Sequence

import msgspec

from bana.slo.clock import Clock
from bana.slo.errors import StoreError, StoreTimeout
from sglang_bana.store.lane_channel import LaneChannel
from sglang_bana.store.mooncake_lane import ORDER, LaneSettings, Verb
from sglang_bana.store.mooncake_options import MooncakeOptions

PROGRAM = (sys.executable, "-m", "sglang_bana.store.mooncake_lane")
REAP_TIMEOUT_S = 5.0
MAX_WORDS_BYTES = 4096


@dataclasses.dataclass(frozen=True)
class Order:
    """One call: what is sent, and where the object that comes back belongs."""

    verb: Verb
    name: str
    sent: Sequence[bytes | memoryview] = ()
    received: Sequence[memoryview] = ()

    @property
    def received_bytes(self) -> int:
        """How long an object that comes back must be."""
        return sum(len(part) for part in self.received)

    def pack_head(self) -> bytes:
        """All that goes before the object."""
        name = self.name.encode()
        size_bytes = sum(len(part) for part in self.sent) + self.received_bytes
        return ORDER.pack(self.verb, len(name), size_bytes) + name


class LaneProcess:
    """Used by one thread at a time; `kill` may come from any. It rests until `rests_until_s`."""

    def __init__(self, options: MooncakeOptions, clock: Clock) -> None:
        self._options = options
        self._clock = clock
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: LaneChannel | None = None
        self._is_up = False
        self._started_s = 0.0
        self.rests_until_s = 0.0
        self._trouble = ""

    def call(self, order: Order, end_s: float) -> int:
        """Mooncake's code; StoreTimeout or StoreError where there is none by `end_s`."""
        channel = self.await_up(end_s)
        try:
            channel.send(order.pack_head(), end_s)
            for part in order.sent:
                channel.send(part, end_s)
            code, size_bytes = channel.receive_answer(end_s)
            if size_bytes:
                _receive_object(channel, order, size_bytes, end_s)
        except StoreError as error:
            # What the lane still says would be taken for the answer to the next order.
            self.end(str(error))
            raise
        return code

    def await_up(self, end_s: float) -> LaneChannel:
        """The channel to a process that is connected; one that only needs longer goes on."""
        channel = self._channel or self._start()
        if self._is_up:
            return channel
        last_s = self._started_s + self._options.start_timeout_s
        try:
            channel.await_word(min(end_s, last_s))
            self._hear_first(channel)
        except StoreTimeout:
            if self._clock.now_s() >= last_s:
                self.end(f"the master {self._options.master} has not answered")
            raise
        except StoreError as error:
            self.end(str(error))
            raise
        return channel

    def end(self, trouble: str) -> None:
        """Kill it; another one may be started after a rest."""
        self._trouble, self._is_up = trouble, False
        self.rests_until_s = self._clock.now_s() + self._options.restart_s
        channel, self._channel = self._channel, None
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(REAP_TIMEOUT_S)
        if channel is not None:
            channel.close()

    def kill(self) -> None:
        """End the process only: who uses it hears of that as of any other death."""
        process = self._process
        if process is not None:
            process.kill()

    def _start(self) -> LaneChannel:
        if self._clock.now_s() < self.rests_until_s:
            raise StoreError(f"the lane rests: {self._trouble}")
        ours, theirs = socket.socketpair()
        argv = [*PROGRAM, msgspec.json.encode(_settings(self._options)).decode()]
        quiet = subprocess.DEVNULL
        try:
            with theirs:
                self._process = subprocess.Popen(
                    argv, stdin=theirs.fileno(), stdout=quiet, stderr=quiet
                )
        except OSError as error:
            ours.close()
            self.end(f"{error.strerror}")
            raise StoreError(f"a lane cannot be started: {error.strerror}") from error
        self._started_s = self._clock.now_s()
        self._channel = LaneChannel(ours, self._clock)
        return self._channel

    def _hear_first(self, channel: LaneChannel) -> None:
        """Whether it is up, or why not; all of that was said at once."""
        end_s = self._clock.now_s() + self._options.call_timeout_s
        code, size_bytes = channel.receive_answer(end_s)
        words = bytearray(min(size_bytes, MAX_WORDS_BYTES))
        channel.receive(memoryview(words), end_s)
        if code:
            raise StoreError(words.decode(errors="replace"))
        self._is_up, self.rests_until_s = True, 0.0


def _settings(options: MooncakeOptions) -> LaneSettings:
    return LaneSettings(
        master=options.master,
        metadata=options.metadata,
        host=options.host,
        buffer_bytes=options.buffer_bytes,
        rpc_timeout_ms=max(1, int(1000 * options.call_timeout_s)),
    )


def _receive_object(channel: LaneChannel, order: Order, size_bytes: int, end_s: float) -> None:
    if size_bytes != order.received_bytes:
        raise StoreError(f"a lane sends {size_bytes} bytes that were not asked for")
    for part in order.received:
        channel.receive(part, end_s)
