"""What the command line asks a running store daemon."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TypeVar

import msgspec
import zmq

from bana.radix_global.admin_messages import Answer, Ask, Denied
from bana.radix_global.messages import MAX_MESSAGE_BYTES, decode_event, encode
from bana.slo.errors import BanaError, ConfigError
from sglang_bana.cluster.control import find_live_run
from sglang_bana.cluster.run_dir import RunDir, is_live, list_runs, locate_base, read_state

NUMBER = 1
A = TypeVar("A", bound=msgspec.Struct)


class StoreSilent(BanaError):
    """The daemon did not answer in time."""

    status = 1


class StoreAddress(msgspec.Struct, frozen=True):
    """Where a run's daemon listens, and the key for orders."""

    endpoint: str
    secret: str


def find_store(given: str | None, environ: Mapping[str, str]) -> StoreAddress:
    """The daemon of the run in folder `given`, else of the newest live run with one."""
    run_dir = find_live_run(given, environ).run_dir
    if given is None and not run_dir.store_socket.exists():
        runs = (run for run in list_runs(locate_base(environ)) if run.store_socket.exists())
        run_dir = next((run for run in runs if _is_live(run)), run_dir)
    if not run_dir.store_socket.exists():
        raise ConfigError(
            f"the run in {run_dir.root} has no store; start the cluster with "
            "--set store.enabled=true"
        )
    try:
        secret = run_dir.key_file.read_text(encoding="ascii")
    except OSError as error:
        raise ConfigError(f"{run_dir.key_file}: {error.strerror}; run as its user") from error
    return StoreAddress(run_dir.store_endpoint, secret)


def ask_store(
    address: StoreAddress, build: Callable[[int, str], Ask], kind: type[A], timeout_s: float
) -> A:
    """The answer to `build(number, secret)`; ConfigError if denied, StoreSilent if late."""
    end_s = time.monotonic() + timeout_s
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        socket.connect(address.endpoint)
        socket.send(encode(build(NUMBER, address.secret)), zmq.NOBLOCK)
        while (left_s := end_s - time.monotonic()) > 0:
            if not socket.poll(int(left_s * 1000) + 1):
                continue
            event = decode_event(socket.recv())
            if isinstance(event, Denied):
                raise ConfigError(event.reason)
            if isinstance(event, kind) and isinstance(event, Answer):
                return event
    raise StoreSilent(
        f"the store daemon at {address.endpoint} has not answered within {timeout_s:g} s; see "
        "logs/store.log in its run directory, or ask again"
    )


def _is_live(run_dir: RunDir) -> bool:
    state = read_state(run_dir)
    return state is not None and is_live(state)
