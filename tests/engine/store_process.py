"""A store daemon for engine tests: in a process of its own, killed and started at will."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bana.radix_global.admin_messages import (
    AskStatus,
    OwnerStatus,
    PlaceStatus,
    Status,
    StoreReport,
)
from bana.radix_global.arena_layout import HEAD_BYTES, HEADER_BYTES, parse_header
from sglang_bana.config import StoreConfig, StoreSpec, StoreTierConfig, write_private
from sglang_bana.store.asking import StoreAddress, StoreSilent, ask_store

DEADLINE_S = 60.0
# A client keeps some reserved, so that nothing that is computed waits for the daemon.
MOST_IDLE_SLOTS = 2 * 64


class StoreProcess:
    """One daemon's orders, and the process that carries them out.

    `settings` are those of a StoreConfig.
    """

    def __init__(self, root: Path, *tiers: StoreTierConfig, **settings: Any) -> None:
        self.address = StoreAddress(f"ipc://{root}/store.sock", "the run's key")
        self._arena = Path(f"/dev/shm/bana-test-{os.getpid()}-{root.name}.arena")
        self._log = root / "store.log"
        self._orders = root / "store.json"
        self._process: subprocess.Popen[bytes] | None = None
        self.order(*tiers, **settings)

    def order(self, *tiers: StoreTierConfig, **settings: Any) -> None:
        """What it is to serve from its next start on."""
        # Slow tiers are to be written to all the same.
        patient = {"arena_bytes": 64 * 2**20, "writer_options": {"give_up_s": 60.0}}
        told = {"enabled": True, "placement": "all", **patient, **settings}
        spec = StoreSpec(
            StoreConfig(tiers=tiers, **told),
            self.address.endpoint,
            str(self._arena),
            self.address.secret,
            os.getpid(),
            3.0,
        )
        write_private(self._orders, spec)
        self._spares = sum(tier.width for tier in tiers)

    def start(self) -> None:
        argv = [sys.executable, "-m", "sglang_bana.store.main", str(self._orders)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(argv, stdout=log, stderr=subprocess.STDOUT)
        end_s = time.monotonic() + DEADLINE_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > end_s:
                pytest.fail(self._log.read_text()[-2000:])

    def kill(self) -> None:
        """Without a word, as a crash does: its memory is gone with it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def report(self, deadline_s: float = DEADLINE_S) -> StoreReport:
        answer = ask_store(self.address, lambda n, _: AskStatus(n), Status, deadline_s)
        return answer.report

    def _answers(self) -> bool:
        try:
            self.report(deadline_s=1.0)
        except StoreSilent:
            return False
        return True

    def await_report(self, is_so: Callable[[StoreReport], bool]) -> StoreReport:
        """The first report that is so."""
        end_s = time.monotonic() + DEADLINE_S
        while not is_so(report := self.report()):
            assert time.monotonic() < end_s, (report, self._log.read_text()[-2000:])
            time.sleep(0.05)
        return report

    def wait_tier_pages(self, *pages: int) -> None:
        """Return when the tiers hold so many each, in their order."""
        self.await_report(
            lambda report: all(
                place.pages >= least for place, least in zip(report.places[1:], pages, strict=False)
            )
        )

    def wait_whole(self) -> StoreReport:
        """Return when nobody holds a page, and no slot of the arena is lost."""
        return self.await_report(self._is_whole)

    def _is_whole(self, report: StoreReport) -> bool:
        slots = report.places[0].counts
        used = sum(slots[f"{name}_slots"] for name in ("free", "held", "reading", "reserved"))
        return (
            all(map(is_resting, report.owners))
            and slots["reserved_slots"] == sum(owner.reserved_slots for owner in report.owners)
            and slots["reading_slots"] == self._spares
            and slots["pages_being_written"] == 0
            and slots["held_slots"] == report.places[0].pages
            and used == report.slots
        )

    def give_slots_away(self) -> None:
        """Make every slot look as if it had been given to somebody else meanwhile."""
        with self._arena.open("r+b") as file:
            layout = parse_header(file.read(HEADER_BYTES)).layout
            with mmap.mmap(file.fileno(), layout.slots_at) as head:
                generations = np.frombuffer(head, np.uint64, layout.slots, HEAD_BYTES)
                generations += np.uint64(1)
                del generations

    def end(self) -> None:
        self.kill()
        self._arena.unlink(missing_ok=True)


def is_resting(owner: OwnerStatus) -> bool:
    """Whether it wants nothing, and has no more slots than an idle client keeps."""
    return owner.wants == owner.leased_pages == 0 and owner.reserved_slots <= MOST_IDLE_SLOTS


def place_of(report: StoreReport, name: str) -> PlaceStatus:
    return next(place for place in report.places if place.name == name)
