"""Two hosts that share nothing but a mounted directory: their daemons serve each other's pages."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bana.radix_global.admin_messages import AskClear, Done, Mode, StoreReport

pytestmark = pytest.mark.chaos

Start = Callable[..., Any]
PAGES = 12


@pytest.fixture
def daemons(
    hosts: tuple[Any, Any], start_daemon: Start, tier: Start, tmp_path: Path
) -> tuple[Any, Any]:
    """One on each host, over the same directory."""
    return start_pair(hosts, start_daemon, tier(tmp_path / "a", options=SHARED))


SHARED = {"segment_bytes": 2**20, "writers": 2}


def start_pair(
    hosts: tuple[Any, Any], start_daemon: Start, shared: Any, **settings: Any
) -> tuple[Any, Any]:
    names = ("one", "two")
    pair = [
        start_daemon(shared, name=name, host=host.entry, **settings)
        for name, host in zip(names, hosts, strict=True)
    ]
    return pair[0], pair[1]


def start_told(start_client: Start, daemon: Any) -> Any:
    client = start_client(daemon, f"told-{daemon.root.name}", is_told=True)
    client.await_begin()
    return client


def count_on_tier(report: StoreReport) -> int:
    return next(place.pages for place in report.places if place.name == "directory-1")


def is_written(report: StoreReport) -> bool:
    """Whether nothing is on its way to the tier."""
    arena = next(place for place in report.places if place.name == "arena")
    return arena.counts["pages_being_written"] == 0


def count_written(report: StoreReport) -> int:
    return report.counts.get("writes_written", 0)


COMPLETE = {"outcome": "complete", "pages": PAGES, "right": PAGES, "from_tier": PAGES}


def test_hosts_see_neither_networks_nor_memory_of_each_other(
    daemons: tuple[Any, Any], start_client: Start
) -> None:
    one, two = daemons
    for daemon in daemons:
        # The first client has the arena made.
        start_told(start_client, daemon)
    for daemon, other in ((one, two), (two, one)):
        listed = subprocess.run(
            [*daemon.host, "ls", "/dev/shm"], capture_output=True, text=True, check=True
        )
        assert daemon.arena.name in listed.stdout
        assert other.arena.name not in listed.stdout
    networks = {
        subprocess.run(
            [*daemon.host, "readlink", "/proc/self/ns/net"], capture_output=True, check=True
        ).stdout
        for daemon in daemons
    }
    assert len(networks) == 2


def test_what_one_host_publishes_the_other_finds_reads_and_verifies(
    daemons: tuple[Any, Any], start_client: Start
) -> None:
    one, two = daemons
    writer, reader = start_told(start_client, one), start_told(start_client, two)
    writer.tell("publish", 1, 0, PAGES)
    two.await_report(lambda report: count_on_tier(report) >= PAGES)
    asked = reader.tell("want", 1, PAGES, 0)
    assert asked["known"] == PAGES
    assert reader.tell("settle", asked["want"]) == COMPLETE
    # And the other way round, what follows it.
    reader.tell("publish", 1, PAGES, 2 * PAGES)
    one.await_report(lambda report: count_on_tier(report) >= 2 * PAGES)
    asked = writer.tell("want", 1, 2 * PAGES, 0)
    got = writer.tell("settle", asked["want"])
    assert (got["outcome"], got["right"]) == ("complete", 2 * PAGES)
    assert got["from_tier"] >= PAGES


def test_who_asked_before_the_other_host_wrote_is_served_as_it_writes(
    daemons: tuple[Any, Any], start_client: Start
) -> None:
    one, two = daemons
    writer, reader = start_told(start_client, one), start_told(start_client, two)
    nothing_yet = reader.tell("want", 2, PAGES, 50)
    assert (nothing_yet["known"], nothing_yet["coming"]) == (0, PAGES)
    writer.tell("publish", 2, 0, 5)
    two.await_report(lambda report: report.counts.get("grown_pages", 0) >= 5)
    begun = reader.tell("want", 2, PAGES, 50)
    assert (begun["known"], begun["coming"]) == (5, PAGES - 5)
    writer.tell("publish", 2, 5, PAGES)
    assert reader.tell("settle", nothing_yet["want"]) == COMPLETE
    got = reader.tell("settle", begun["want"])
    assert (got["outcome"], got["right"]) == ("complete", PAGES)


def test_who_waits_for_pages_that_nobody_writes_gives_up_when_that_was_promised(
    daemons: tuple[Any, Any], start_client: Start
) -> None:
    one, two = daemons
    writer, reader = start_told(start_client, one), start_told(start_client, two)
    writer.tell("publish", 3, 0, 3)
    two.await_report(lambda report: count_on_tier(report) >= 3)
    asked = reader.tell("want", 3, PAGES, 0.5)
    got = reader.tell("settle", asked["want"])
    assert got == {"outcome": "missing", "pages": 3, "right": 3, "from_tier": 3}


def test_both_hosts_write_the_same_pages_and_either_copy_is_right(
    hosts: tuple[Any, Any], start_daemon: Start, start_client: Start, tier: Start, tmp_path: Path
) -> None:
    # They look at the directory at their start only, so that neither knows of the other's copies.
    shared = tier(tmp_path / "a", options=SHARED)
    daemons = start_pair(hosts, start_daemon, shared, refresh_s=3600.0)
    for daemon in daemons:
        daemon.await_report(lambda report: not report.is_recovering)
    for daemon in daemons:
        start_told(start_client, daemon).tell("publish", 4, 0, PAGES)
    for daemon in daemons:
        daemon.await_report(lambda report: count_written(report) == PAGES)
    for daemon in daemons:
        daemon.kill()
    for daemon in daemons:
        daemon.start()
        daemon.await_report(lambda report: count_on_tier(report) == PAGES)
        reader = start_told(start_client, daemon)
        asked = reader.tell("want", 4, PAGES, 0)
        assert reader.tell("settle", asked["want"]) == COMPLETE


def test_a_host_that_is_killed_amid_its_writing_costs_the_other_nothing_but_time(
    daemons: tuple[Any, Any], start_client: Start
) -> None:
    one, two = daemons
    writer, reader = start_told(start_client, one), start_told(start_client, two)
    asked = reader.tell("want", 5, PAGES, 50)
    storm = start_client(one, "storm")
    writer.tell("publish", 5, 0, 6)
    two.await_report(lambda report: report.counts.get("grown_pages", 0) >= 6)
    one.await_report(lambda report: count_written(report) > 20)
    one.kill()
    # What the killed one had written whole is served without it.
    served = reader.tell("want", 5, 6, 0)
    assert reader.tell("settle", served["want"])["right"] == 6
    one.start()
    writer.tell("publish", 5, 6, PAGES)
    assert reader.tell("settle", asked["want"]) == COMPLETE
    storm.finish()
    # Every page that the killed one has left behind is whole, or is not there.
    checker = start_client(two, "checker")
    report = two.await_report(lambda report: report.counts.get("pages_read", 0) > 40)
    checker.finish()
    assert report.counts.get("reads_corrupt", 0) == 0


def test_one_host_clears_what_the_other_reads(
    daemons: tuple[Any, Any], start_client: Start
) -> None:
    one, two = daemons
    storms = [start_client(daemon, f"storm-{daemon.root.name}") for daemon in daemons]
    for _ in range(3):
        seen = two.report().counts.get("pages_read", 0)
        two.await_report(lambda report, seen=seen: report.counts.get("pages_read", 0) > seen + 10)
        done = one.ask(lambda n, secret: AskClear(n, secret, Mode.CARRY_OUT), Done)
        assert done.pages
    told = [storm.finish() for storm in storms]
    assert all(each.get("restored_tier", 0) > 0 for each in told)
    # With nobody there who writes, clears leave nothing for either.
    for daemon in daemons:
        daemon.await_report(is_written)
        daemon.ask(lambda n, secret: AskClear(n, secret, Mode.CARRY_OUT), Done)
    for daemon in daemons:
        report = daemon.await_report(lambda report: count_on_tier(report) == 0)
        assert report.counts.get("reads_corrupt", 0) == 0
