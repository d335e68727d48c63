"""The store daemon's process: `python -m sglang_bana.store.main SPEC.json`.

It ends when its launcher dies, and on SIGTERM or SIGINT, within the time that its orders give.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from pathlib import Path
from random import SystemRandom

import msgspec

from bana.radix_global.daemon.daemon import StoreDaemon
from bana.slo.errors import BanaError, ConfigError
from sglang_bana.config import StoreSpec
from sglang_bana.lifeline import die_with_parent
from sglang_bana.store.building import build_plan, build_tiers
from sglang_bana.store.clock import RealClock
from sglang_bana.store.pin_file import PinFile
from sglang_bana.store.processes import PidWatch

EXIT_USAGE = 2
IPC = "ipc://"
PINS_SUFFIX = ".pins"
PINS_TIMEOUT_S = 1.0


def main(arguments: list[str]) -> int:
    """Serve until told to stop; the exit status."""
    if len(arguments) != 1:
        print("usage: python -m sglang_bana.store.main SPEC.json", file=sys.stderr)
        return EXIT_USAGE
    try:
        spec = msgspec.json.decode(Path(arguments[0]).read_bytes(), type=StoreSpec)
    except (OSError, msgspec.MsgspecError) as error:
        print(f"bana: cannot read the store's spec {arguments[0]}: {error}", file=sys.stderr)
        return EXIT_USAGE
    if spec.parent_pid:
        die_with_parent(spec.parent_pid)
    try:
        serve(spec)
    except BanaError as error:
        print(f"bana: {error}", file=sys.stderr)
        return EXIT_USAGE
    return 0


def serve(spec: StoreSpec) -> None:
    """Serve until a signal; ConfigError where the orders cannot be carried out."""
    stop = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os.eventfd_write(stop, 1))
    # Held for the process's life.
    _lock = lock_endpoint(spec.endpoint)
    clock, rng = RealClock(), SystemRandom()
    tiers = build_tiers(spec.store, clock, rng)
    pins = PinFile(locate_pins(spec.endpoint), clock, _say)
    daemon = StoreDaemon(build_plan(spec, rng), tiers, PidWatch(), clock, _say, pins)
    names = ", ".join(f"{tier.name} ({tier.width} reads at once)" for tier in tiers) or "none"
    _say(f"the store listens on {spec.endpoint}; tiers: {names}")
    try:
        daemon.serve(stop)
    finally:
        stuck = daemon.close(spec.stop_timeout_s) + (not pins.close(PINS_TIMEOUT_S))
        if stuck:
            _say(f"{stuck} threads are stuck in their storage and are left behind")
    os.close(_lock)


def locate_pins(endpoint: str) -> Path:
    """Where the daemon of that address writes down what it pins: beside its socket."""
    return Path(endpoint.removeprefix(IPC)).with_suffix(PINS_SUFFIX)


def lock_endpoint(endpoint: str) -> int:
    """The descriptor that keeps a second daemon from this address; ConfigError if there is one.

    ZMQ would take the address away from the first one without a word.
    """
    path = Path(endpoint.removeprefix(IPC) + ".lock")
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"store endpoint {endpoint}: {error.strerror}; name another") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(fd)
        raise ConfigError(
            f"store endpoint {endpoint}: another daemon serves there; stop it, or name another "
            "run directory"
        ) from error
    return fd


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
