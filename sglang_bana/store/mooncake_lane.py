"""One lane to a Mooncake store: a process that carries out one order at a time and may be killed.

    daemon ──Order, name, object──▶ lane ──Mooncake's client──▶ master, memory of other hosts
           ◀──Answer, object──────

`python -m sglang_bana.store.mooncake_lane SETTINGS`, orders on its standard input, a socket. The
first answer says that it is up, or why not. Mooncake's client is kept in a process of its own
because its calls have no deadlines, some hold Python's lock for seconds, and a bad one ends the
process that makes it.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import sys
import threading
from enum import IntEnum
from typing import Any

import msgspec

# Verb, length of the name, length of the object that follows a PUT or that a GET expects.
ORDER = struct.Struct("<BHQ")
# Code of the Answer or of Mooncake, length of the object that follows.
ANSWER = struct.Struct("<iQ")
MAX_WORDS = 500


class Verb(IntEnum):
    """What to do with an object."""

    PUT = 1
    GET = 2
    REMOVE = 3


class Code(IntEnum):
    """What became of it: Mooncake's own numbers, and OTHER_SIZE."""

    DONE = 0
    OTHER_SIZE = 1
    NO_ROOM = -200
    MISSING = -704
    RPC_FAILED = -900
    RPC_LATE = -901


class LaneSettings(msgspec.Struct, frozen=True):
    """Where the master is, and the memory through which this lane moves objects."""

    master: str
    metadata: str
    host: str
    buffer_bytes: int
    rpc_timeout_ms: int


class Lane:
    """Carries out what comes over `channel`, by way of `client`, a MooncakeDistributedStore."""

    def __init__(self, channel: socket.socket, client: Any) -> None:
        self._channel = channel
        self._client = client

    def serve(self) -> None:
        """Until the other side closes the channel."""
        while len(head := self._channel.recv(ORDER.size, socket.MSG_WAITALL)) == ORDER.size:
            verb, name_bytes, size_bytes = ORDER.unpack(head)
            name = self._receive(name_bytes).decode()
            if verb == Verb.PUT:
                self._answer(self._client.put(name, self._receive(size_bytes)))
            elif verb == Verb.GET:
                self._get(name, size_bytes)
            else:
                # By force: a page that was just read is as unwanted as any other.
                self._answer(self._client.remove(name, True))

    def _get(self, name: str, size_bytes: int) -> None:
        found = self._client.get_buffer(name)
        if found is None:
            # One that is there and cannot be had fits not into the buffer, or is not whole yet.
            is_missing = self._client.is_exist(name) == 0
            self._answer(Code.MISSING if is_missing else Code.RPC_FAILED)
            return
        with memoryview(found).cast("B") as view:
            if view.nbytes == size_bytes:
                self._answer(Code.DONE, view)
            else:
                self._answer(Code.OTHER_SIZE)

    def _receive(self, size_bytes: int) -> bytearray:
        content = bytearray(size_bytes)
        view = memoryview(content)
        while view.nbytes:
            count = self._channel.recv_into(view)
            if count == 0:
                raise EOFError
            view = view[count:]
        return content

    def _answer(self, code: int, content: memoryview | bytes = b"") -> None:
        self._channel.sendall(ANSWER.pack(code, len(content)))
        self._channel.sendall(content)


def main(arguments: list[str]) -> int:
    """Serve until the daemon is gone."""
    settings = msgspec.json.decode(arguments[0], type=LaneSettings)
    channel = socket.socket(fileno=os.dup(0))
    threading.Thread(target=_end_with, args=(channel,), daemon=True).start()
    client, trouble = _connect(settings)
    words = trouble[:MAX_WORDS].encode()
    channel.sendall(ANSWER.pack(-1 if trouble else 0, len(words)) + words)
    if not trouble:
        Lane(channel, client).serve()
    # Closing the client waits for a master that may be gone; the kernel does it at once.
    os._exit(bool(trouble))


def _connect(settings: LaneSettings) -> tuple[Any, str]:
    """The client, or why there is none."""
    os.environ.setdefault("GLOG_minloglevel", "2")
    os.environ.setdefault("MC_STORE_CLIENT_SETUP_RETRIES", "1")
    os.environ.setdefault("MC_RPC_TIMEOUT_MS", str(settings.rpc_timeout_ms))
    os.environ.setdefault("MC_RPC_CONNECT_TIMEOUT_MS", str(settings.rpc_timeout_ms))
    os.environ.setdefault("MC_TCP_BIND_ADDRESS", settings.host)
    try:
        from mooncake.store import MooncakeDistributedStore
    except ImportError as error:
        words = f"mooncake.store cannot be imported: {error}; install what it names"
        return None, f"{words} (libibverbs.so.1 is in Debian's libibverbs1)"
    client = MooncakeDistributedStore()
    # No memory of this process joins the pool: it would go whenever the lane is killed.
    status = client.setup(
        settings.host, settings.metadata, 0, settings.buffer_bytes, "tcp", "", settings.master
    )
    return client, f"its setup answered {status}; start mooncake_master" if status else ""


def _end_with(channel: socket.socket) -> None:
    """End the process once the other side has closed, whatever its call waits for."""
    poll = select.poll()
    poll.register(channel, select.POLLRDHUP)
    poll.poll()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
