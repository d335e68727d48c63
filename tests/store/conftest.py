"""Real store daemons and clients for tests: each in a process of its own, and proven gone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bana.radix_global.admin_messages import Ask, AskStatus, Status, StoreReport
from sglang_bana.config import StoreConfig, StoreSpec, StoreTierConfig, write_private
from sglang_bana.store.asking import StoreAddress, ask_store

DEADLINE_S = 60.0
PAGE_BYTES = 16_384
SECRET = "the run's key"
STORM = Path(__file__).with_name("storm.py")
TOLD = Path(__file__).with_name("told.py")


class Daemon:
    """One daemon's orders, and whatever process carries them out now."""

    page_bytes = PAGE_BYTES

    def __init__(self, root: Path, store: StoreConfig, host: Sequence[str] = ()) -> None:
        """`host` is the command by which processes of another host are started."""
        self.host = tuple(host)
        root.mkdir(mode=0o700, exist_ok=True)
        self.root = root
        self.log = root / "store.log"
        self.address = StoreAddress(f"ipc://{root}/store.sock", SECRET)
        self.arena = Path(f"/dev/shm/bana-test-{os.getpid()}-{root.name}.arena")
        self.spec_file = root / "store.json"
        self._spec = StoreSpec(
            store, self.address.endpoint, str(self.arena), SECRET, os.getpid(), 3.0
        )
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        if not self.spec_file.exists():
            write_private(self.spec_file, self._spec)
        program = (sys.executable, "-m", "sglang_bana.store.main")
        argv = [*self.host, *program, str(self.spec_file)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(argv, stdout=log, stderr=subprocess.STDOUT)
        self.report()

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(DEADLINE_S)

    def stop(self) -> int:
        """The exit status after SIGTERM."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(DEADLINE_S)

    def ask(self, build: Callable[[int, str], Ask], kind: Any) -> Any:
        return ask_store(self.address, build, kind, DEADLINE_S)

    def report(self) -> StoreReport:
        return self.ask(lambda n, _: AskStatus(n), Status).report

    def await_report(self, holds: Callable[[StoreReport], bool]) -> StoreReport:
        """The first report for which `holds`; AssertionError with the last one at a deadline."""
        end_s = time.monotonic() + DEADLINE_S
        while not holds(report := self.report()):
            assert time.monotonic() < end_s, (report, self.log.read_text()[-2000:])
            time.sleep(0.05)
        return report


class Client:
    """One storm, in a process of its own, on its daemon's host."""

    has_begun = False
    script = STORM

    def __init__(self, daemon: Daemon, name: str, **settings: Any) -> None:
        bounds = {"documents": 24, "pages": 12, "seed": 1, **settings}
        told = {"endpoint": daemon.address.endpoint, "page_bytes": PAGE_BYTES, "name": name}
        file = daemon.root / f"{name}.json"
        file.write_text(json.dumps({**told, **bounds}))
        self.process = subprocess.Popen(
            [*daemon.host, sys.executable, str(self.script), str(file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def await_line(self, line: str) -> None:
        """Return once it says that, as the first thing or after what was awaited before."""
        assert self.process.stdout is not None
        assert self.process.stdout.readline().strip() == line

    def await_begin(self) -> None:
        """Before that it could not be told to end."""
        self.await_line("begun")
        self.has_begun = True

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def finish(self) -> dict[str, int]:
        """Have it end; what it saw, which must be no wrong byte."""
        if not self.has_begun:
            self.await_begin()
        self.process.send_signal(signal.SIGTERM)
        output, _ = self.process.communicate(timeout=DEADLINE_S)
        seen = json.loads(output.splitlines()[-1])
        assert self.process.returncode == 0, seen
        assert not seen.get("wrong_pages")
        assert not seen.get("never_settled")
        return seen


class ToldClient(Client):
    """One that does what it is told, see told.py; its wants go on beside each other."""

    script = TOLD

    def tell(self, verb: str, *numbers: float) -> dict[str, Any]:
        """Have it done; the answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([verb, *numbers]) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer


@pytest.fixture
def start_daemon(tmp_path: Path) -> Iterator[Callable[..., Daemon]]:
    """A function: tiers and settings in, a running daemon out."""
    daemons: list[Daemon] = []

    def start(
        *tiers: StoreTierConfig, name: str = "one", host: Sequence[str] = (), **settings: Any
    ) -> Daemon:
        # 2 MiB are some 100 slots: less than the documents of a storm.
        bounds = {"arena_bytes": 2 * 2**20, "refresh_s": 0.2, "enabled": True, **settings}
        daemon = Daemon(tmp_path / name, StoreConfig(tiers=tiers, **bounds), host)
        daemons.append(daemon)
        daemon.start()
        return daemon

    yield start
    for daemon in daemons:
        if daemon.process is not None and daemon.process.poll() is None:
            daemon.kill()
        daemon.arena.unlink(missing_ok=True)


@pytest.fixture
def start_client() -> Iterator[Callable[..., Client]]:
    """A function: a daemon, a name and settings in, a running client out."""
    clients: list[Client] = []

    def start(daemon: Daemon, name: str, is_told: bool = False, **settings: Any) -> Client:
        kind = ToldClient if is_told else Client
        clients.append(kind(daemon, name, **settings))
        return clients[-1]

    yield start
    for client in clients:
        if client.process.poll() is None:
            client.process.kill()
        client.process.communicate()


@pytest.fixture
def tier() -> Callable[..., StoreTierConfig]:
    """A function: a folder and settings in, a small directory tier out."""

    def build(path: Path, **settings: Any) -> StoreTierConfig:
        bounds = {
            "capacity_bytes": 16 * 2**20,
            "width": 2,
            "options": {"segment_bytes": 2**20},
            **settings,
        }
        return msgspec.structs.replace(StoreTierConfig(path=str(path)), **bounds)

    return build
