"""Pins of a real daemon, over its lives."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from bana.radix_global.admin_messages import AskPin, AskUnpin, Done, Mode
from bana.radix_global.stores.directory import DirectoryStore
from bana.radix_global.stores.options import DirectoryOptions
from bana.radix_global.stores.store import PageOrigin

pytestmark = pytest.mark.chaos
Start = Callable[..., Any]
PATIENCE_S = 30.0


def write_prefix(folder: Path, letter: str, pages: int, page_bytes: int) -> bytes:
    """The keys of a prefix that is on the tier in `folder`."""
    store = DirectoryStore(folder, DirectoryOptions(2**24, segment_bytes=2**20), Random(1))
    keys = [letter.encode() * 15 + bytes([number]) for number in range(pages)]
    for parent, key in zip([b"", *keys], keys, strict=False):
        store.put(key, Random(key).randbytes(page_bytes), PageOrigin(parent, 1))
    store.close()
    return b"".join(keys)


def kept_pins(daemon: Any) -> int:
    """How many pins the daemon has written down."""
    file = daemon.root / "store.pins"
    return len(json.loads(file.read_bytes())["pins"]) if file.exists() else 0


def await_kept(daemon: Any, pins: int) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while kept_pins(daemon) != pins:
        assert time.monotonic() < end_s, kept_pins(daemon)
        time.sleep(0.02)


def test_a_killed_daemon_pins_again_what_is_still_on_its_tiers(
    start_daemon: Start, tier: Start, tmp_path: Path
) -> None:
    prefixes = [write_prefix(tmp_path / name, name, 4, 16_384) for name in "ab"]
    daemon = start_daemon(tier(tmp_path / "a"), tier(tmp_path / "b"), slot_bytes=16_384)
    daemon.await_report(lambda report: not report.is_recovering)
    for keys in prefixes:
        pinned = daemon.ask(lambda n, s, k=keys: AskPin(n, s, Mode.CARRY_OUT, k, 20.0), Done)
        assert pinned.pages == {"asked": 4, "in_arena": 4}
    await_kept(daemon, 2)
    daemon.kill()
    for segment in (tmp_path / "b").iterdir():
        segment.unlink()
    daemon.start()
    daemon.await_report(lambda report: report.pinned_pages == 4 and not report.waiting_pins)
    said = daemon.log.read_text()
    assert f"the pin {prefixes[0][-16:].hex()} is made again: 4 of 4 pages" in said
    assert f"the pin {prefixes[1][-16:].hex()} is not made again" in said
    await_kept(daemon, 1)
    daemon.ask(lambda n, s: AskUnpin(n, s, Mode.CARRY_OUT), Done)
    await_kept(daemon, 0)
    assert daemon.stop() == 0
    daemon.start()
    assert daemon.await_report(lambda report: not report.is_recovering).pinned_pages == 0


def test_a_spoilt_record_of_pins_ends_nothing(
    start_daemon: Start, tier: Start, tmp_path: Path
) -> None:
    daemon = start_daemon(tier(tmp_path / "a"))
    daemon.kill()
    (daemon.root / "store.pins").write_bytes(b"\xff" * 100)
    daemon.start()
    assert "no pins are made again" in daemon.log.read_text()
    assert (daemon.root / "store.pins.bad").exists()
