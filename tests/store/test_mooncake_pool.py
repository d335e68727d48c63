"""A real Mooncake pool on loopback: its master, who gives it memory, and bana's tier on it."""

from __future__ import annotations

import importlib.util
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from bana.radix_global.stores.remote import RemoteOptions, RemoteStore
from bana.radix_global.stores.store import PageOrigin, ReadOutcome, WriteOutcome
from sglang_bana.config import StoreTierConfig, TierKind
from sglang_bana.store.clock import RealClock
from sglang_bana.store.mooncake import MooncakeClient
from sglang_bana.store.mooncake_options import MooncakeOptions

pytestmark = [pytest.mark.full, pytest.mark.chaos]

GIVE_MEMORY = """
import sys, time
from mooncake.store import MooncakeDistributedStore
giver = MooncakeDistributedStore()
sizes = (64 << 20, 1 << 20)
print(giver.setup("127.0.0.1", "P2PHANDSHAKE", *sizes, "tcp", "", sys.argv[1]), flush=True)
time.sleep(600)
"""
ORIGIN = PageOrigin(b"", 3)
UNREACHED = (WriteOutcome.LATE, WriteOutcome.FAILED)
PAGE_BYTES = 2**20
UP_S = 30.0


class Pool:
    """A master on free ports and what gives it memory."""

    def __init__(self, folder: Path) -> None:
        self.port, metrics = _find_free_ports()
        self.address = f"127.0.0.1:{self.port}"
        ports = [f"-rpc_port={self.port}", f"-metrics_port={metrics}"]
        hosts = ["-rpc_address=127.0.0.1", "-metrics_host=127.0.0.1"]
        self.log = (folder / "master.log").open("wb")
        self.master = subprocess.Popen(
            [_find_master(), *ports, *hosts], stdout=self.log, stderr=self.log
        )
        self.giver: subprocess.Popen[bytes] | None = None

    def open(self) -> None:
        self._await_master()
        self.giver = subprocess.Popen(
            [sys.executable, "-c", GIVE_MEMORY, self.address],
            stdout=subprocess.PIPE,
            stderr=self.log,
        )
        assert self.giver.stdout is not None
        assert self.giver.stdout.readline() == b"0\n"

    def close(self) -> None:
        for process in (self.giver, self.master):
            if process is not None:
                process.kill()
                process.communicate()
        self.log.close()

    def _await_master(self) -> None:
        end_s = time.monotonic() + UP_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1.0).close()
                return
            except OSError:
                assert time.monotonic() < end_s, "mooncake_master does not listen"
                time.sleep(0.05)


def _find_master() -> str:
    package = importlib.util.find_spec("mooncake")
    assert package is not None
    folders = package.submodule_search_locations or []
    beside = [Path(folder, "mooncake_master") for folder in folders]
    return str(next((path for path in beside if path.exists()), shutil.which("mooncake_master")))


def _find_free_ports() -> tuple[int, int]:
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as two,
    ):
        return one.getsockname()[1], two.getsockname()[1]


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    if importlib.util.find_spec("mooncake") is None:
        pytest.skip("Mooncake is not installed: pip install 'bana[mooncake]'")
    argv = [sys.executable, "-c", "import mooncake.store"]
    loaded = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    if loaded.returncode:
        pytest.skip(f"Mooncake cannot be loaded here: {loaded.stderr.splitlines()[-1]}")
    made = Pool(tmp_path)
    try:
        made.open()
        yield made
    finally:
        made.close()


@pytest.fixture
def store(pool: Pool) -> Iterator[RemoteStore]:
    options = MooncakeOptions(pool.address, lanes=2, call_timeout_s=2.0, restart_s=0.2)
    client = MooncakeClient(options, RealClock())
    opened = RemoteStore(client, RemoteOptions(2**30), RealClock())
    yield opened
    opened.close()


def key_of(number: int) -> bytes:
    return number.to_bytes(16, "big")


def page_of(number: int) -> bytes:
    return Random(number).randbytes(PAGE_BYTES)


def read(store: RemoteStore, number: int) -> ReadOutcome:
    """READ is answered for the right bytes only."""
    target = bytearray(PAGE_BYTES)
    outcome = store.read(key_of(number), memoryview(target))
    assert outcome is not ReadOutcome.READ or bytes(target) == page_of(number)
    return outcome


def test_pages_are_put_read_dropped_and_put_again(store: RemoteStore, pool: Pool) -> None:
    for number in range(20):
        written = store.put(key_of(number), page_of(number), ORIGIN)
        assert written.outcome is WriteOutcome.WRITTEN
    assert all(read(store, number) is ReadOutcome.READ for number in range(20))
    assert store.drop(key_of(3)).outcome is WriteOutcome.DROPPED
    assert read(store, 3) is ReadOutcome.MISSING
    assert store.put(key_of(3), page_of(3), ORIGIN).outcome is WriteOutcome.WRITTEN
    assert read(store, 3) is ReadOutcome.READ
    # Another host that comes to the same page finds it there, whole.
    other = RemoteStore(
        MooncakeClient(MooncakeOptions(pool.address, lanes=1), RealClock()),
        RemoteOptions(2**30),
        RealClock(),
    )
    assert other.put(key_of(4), page_of(4), ORIGIN).outcome is WriteOutcome.WRITTEN
    assert read(other, 4) is ReadOutcome.READ
    other.close()


def test_a_pool_that_overflows_loses_pages_and_says_so(store: RemoteStore) -> None:
    outcomes = [store.put(key_of(n), page_of(n), ORIGIN).outcome for n in range(150)]
    assert set(outcomes) <= {WriteOutcome.WRITTEN, WriteOutcome.FULL}
    seen = [read(store, number) for number in range(150)]
    assert ReadOutcome.MISSING in seen
    assert ReadOutcome.READ in seen
    assert len(store.pages()) == seen.count(ReadOutcome.READ)


def test_a_master_that_is_frozen_or_dead_keeps_nobody(store: RemoteStore, pool: Pool) -> None:
    store.put(key_of(1), page_of(1), ORIGIN)
    pool.master.send_signal(signal.SIGSTOP)
    begun_s = time.monotonic()
    assert store.put(key_of(2), page_of(2), ORIGIN).outcome in UNREACHED
    assert time.monotonic() - begun_s < 20
    pool.master.send_signal(signal.SIGCONT)
    end_s = time.monotonic() + 60
    while store.put(key_of(3), page_of(3), ORIGIN).outcome is not WriteOutcome.WRITTEN:
        assert time.monotonic() < end_s
        time.sleep(0.1)
    assert read(store, 1) is ReadOutcome.READ
    pool.master.kill()
    begun_s = time.monotonic()
    assert store.put(key_of(4), page_of(4), ORIGIN).outcome in UNREACHED
    store.close()
    assert time.monotonic() - begun_s < 20


def test_a_daemon_serves_from_a_pool(
    pool: Pool, start_daemon: Callable[..., Any], start_client: Callable[..., Any]
) -> None:
    tier = StoreTierConfig(
        TierKind.MOONCAKE,
        capacity_bytes=2**30,
        width=2,
        options={"master": pool.address, "lanes": 3, "buffer_bytes": 2**22},
    )
    daemon = start_daemon(tier)
    clients = [start_client(daemon, f"c{n}", seed=n) for n in range(2)]
    daemon.await_report(lambda report: report.counts.get("pages_read", 0) > 20)
    seen = [client.finish() for client in clients]
    assert sum(each.get("restored_tier", 0) for each in seen) > 0
    report = daemon.report()
    assert report.counts.get("reads_corrupt", 0) == 0
    assert next(place.pages for place in report.places if place.name == "mooncake-1") > 0
    assert daemon.stop() == 0
