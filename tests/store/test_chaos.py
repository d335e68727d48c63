"""Whatever happens to daemon, clients and tiers: no wrong byte, no lost slot, no hang."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bana.radix_global.admin_messages import StoreReport

pytestmark = pytest.mark.chaos

Start = Callable[..., Any]


def place(report: StoreReport, name: str) -> Any:
    return next(each for each in report.places if each.name == name)


def is_whole(report: StoreReport) -> bool:
    """Nobody holds anything, and every slot is free, in the index, or a spare of the reader's."""
    slots = place(report, "arena").counts
    spares = 2 * (len(report.places) - 1)
    used = slots["free_slots"] + slots["held_slots"] + slots["reading_slots"]
    return (
        not report.owners
        and slots["reserved_slots"] == 0
        and slots["reading_slots"] == spares
        and slots["pages_being_written"] == 0
        and used == report.slots
        and slots["held_slots"] == place(report, "arena").pages
    )


def count(report: StoreReport, name: str) -> int:
    return report.counts.get(name, 0)


def run_storms(
    daemon: Any, start_client: Start, until: Callable[[StoreReport], bool], clients: int = 2
) -> list[Any]:
    """What so many clients saw; they go on until the daemon's report satisfies `until`."""
    running = [start_client(daemon, f"c{n}", seed=n) for n in range(clients)]
    daemon.await_report(until)
    return [client.finish() for client in running]


def has_written(report: StoreReport) -> bool:
    return count(report, "writes_written") > 20


def test_a_daemon_killed_under_load_comes_back_with_what_is_on_the_tiers(
    start_daemon: Start, start_client: Start, tier: Start, tmp_path: Path
) -> None:
    daemon = start_daemon(tier(tmp_path / "a"), tier(tmp_path / "b"))
    clients = [start_client(daemon, f"c{n}", seed=n) for n in range(2)]
    for _ in range(2):
        daemon.await_report(lambda r: len(r.owners) == 2 and count(r, "arrived_pages") > 40)
        daemon.kill()
        daemon.start()
    daemon.await_report(lambda r: len(r.owners) == 2 and count(r, "pages_read") > 10)
    seen = [client.finish() for client in clients]
    assert all(each["client_lost"] >= 2 for each in seen)
    assert sum(each["restored_tier"] for each in seen) > 0
    report = daemon.await_report(is_whole)
    assert count(report, "found_pages") > 0
    assert count(report, "reads_corrupt") == 0


def test_a_killed_client_leaves_nothing_behind(
    start_daemon: Start, start_client: Start, tier: Start, tmp_path: Path
) -> None:
    daemon = start_daemon(tier(tmp_path / "a"))
    run_storms(daemon, start_client, has_written, clients=1)
    holder = start_client(daemon, "holder", holds=True)
    holder.await_begin()
    holder.await_line("holding")
    held = next(owner for owner in daemon.report().owners if owner.name == "holder")
    assert held.reserved_slots >= 4
    holder.process.send_signal(signal.SIGKILL)
    report = daemon.await_report(is_whole)
    assert count(report, "deaths") == 1


def test_a_frozen_client_keeps_what_it_has_and_goes_on_when_it_is_woken(
    start_daemon: Start, start_client: Start, tier: Start, tmp_path: Path
) -> None:
    daemon = start_daemon(tier(tmp_path / "a"))
    run_storms(daemon, start_client, has_written, clients=1)
    holder = start_client(daemon, "holder", holds=True)
    holder.await_begin()
    holder.await_line("holding")
    holder.process.send_signal(signal.SIGSTOP)
    most = count(daemon.report(), "arrived_pages") + 500
    run_storms(daemon, start_client, lambda report: count(report, "arrived_pages") > most)
    frozen = next(owner for owner in daemon.report().owners if owner.name == "holder")
    assert frozen.reserved_slots >= 4
    most = count(daemon.report(), "arrived_pages") + 20
    holder.process.send_signal(signal.SIGCONT)
    holder.go_on()
    daemon.await_report(lambda report: count(report, "arrived_pages") > most)
    woken = holder.finish()
    assert woken.get("lease_held") == 1, woken
    assert woken.get("restored_arena", 0) + woken.get("restored_tier", 0) > 0
    daemon.await_report(is_whole)


def test_a_stalling_tier_delays_nobody_who_can_be_served_elsewhere(
    start_daemon: Start, start_client: Start, tier: Start, tmp_path: Path
) -> None:
    stalling = tier(tmp_path / "a", name="stalling", faults={"stall": 0.2, "stall_s": 6.0})
    daemon = start_daemon(stalling, tier(tmp_path / "b", name="sound"), placement="all")

    def has_gone_on(report: StoreReport) -> bool:
        stalls = place(report, "stalling").counts.get("injected_stall", 0)
        return stalls > 1 and place(report, "sound").counts.get("reads_read", 0) > 50

    seen = run_storms(daemon, start_client, has_gone_on)
    assert sum(each.get("restored_tier", 0) for each in seen) > 0
    daemon.await_report(is_whole)


def test_a_directory_that_is_deleted_costs_its_pages_only(
    start_daemon: Start, start_client: Start, tier: Start, tmp_path: Path
) -> None:
    daemon = start_daemon(tier(tmp_path / "a", name="gone"), tier(tmp_path / "b", name="there"))
    clients = [start_client(daemon, f"c{n}", seed=n) for n in range(2)]
    daemon.await_report(lambda report: place(report, "gone").counts.get("writes_written", 0) > 10)
    shutil.rmtree(tmp_path / "a")
    daemon.await_report(lambda report: place(report, "gone").counts.get("writes_failed", 0) > 0)
    written = place(daemon.report(), "there").counts["writes_written"]
    daemon.await_report(lambda report: place(report, "there").counts["writes_written"] > written)
    for client in clients:
        client.finish()
    daemon.await_report(is_whole)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB of its own."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(path)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("file systems cannot be mounted here")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def test_a_full_disk_is_an_outcome_and_no_end(
    start_daemon: Start, start_client: Start, tier: Start, small_disk: Path
) -> None:
    daemon = start_daemon(tier(small_disk / "a", capacity_bytes=6 * 2**20))
    (small_disk / "others").write_bytes(bytes(7 * 2**20))
    run_storms(daemon, start_client, lambda report: count(report, "writes_full") > 5)
    daemon.await_report(is_whole)


def test_corrupt_and_short_reads_are_never_seen_by_a_client(
    start_daemon: Start, start_client: Start, tier: Start, tmp_path: Path
) -> None:
    bad = {"corrupt": 0.05, "short": 0.05, "error": 0.02}
    daemon = start_daemon(tier(tmp_path / "a", name="bad", faults=bad), tier(tmp_path / "b"))

    def has_met_faults(report: StoreReport) -> bool:
        kinds = ("reads_corrupt", "reads_short", "reads_failed")
        return all(count(report, kind) for kind in kinds) and count(report, "pages_read") > 100

    seen = run_storms(daemon, start_client, has_met_faults)
    assert sum(each.get("restored_tier", 0) for each in seen) > 0
    daemon.await_report(is_whole)


def test_two_daemons_share_one_directory(
    start_daemon: Start, start_client: Start, tier: Start, tmp_path: Path
) -> None:
    shared = tier(tmp_path / "a", options={"segment_bytes": 2**20, "writers": 2})
    one = start_daemon(shared)
    two = start_daemon(shared, name="two")
    run_storms(one, start_client, has_written, clients=1)
    two.await_report(lambda report: place(report, "directory-1").pages > 10)
    clients = [start_client(daemon, f"c-{daemon.root.name}", seed=0) for daemon in (one, two)]
    two.await_report(lambda report: count(report, "pages_read") > 5)
    seen = [client.finish() for client in clients]
    assert seen[1]["restored_tier"] > 0
    for daemon in (one, two):
        daemon.await_report(is_whole)


def test_a_daemon_that_is_told_to_stop_ends_in_time_and_leaves_no_memory(
    start_daemon: Start, start_client: Start, tier: Start, tmp_path: Path
) -> None:
    stalling = tier(tmp_path / "a", faults={"stall": 0.5, "stall_s": 60.0})
    daemon = start_daemon(stalling)
    client = start_client(daemon, "c")
    daemon.await_report(lambda report: count(report, "published_pages") > 5)
    begun_s = time.monotonic()
    assert daemon.stop() == 0
    assert time.monotonic() - begun_s < 30
    assert not daemon.arena.exists()
    assert client.finish()["client_lost"] == 1
