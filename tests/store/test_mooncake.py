"""Lanes to a Mooncake store: right bytes or an outcome, both in time, and no process left over."""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import msgspec
import psutil
import pytest

from bana.radix_global.stores.store import ReadOutcome, WriteOutcome
from bana.slo.errors import ConfigError
from sglang_bana.store import mooncake
from sglang_bana.store.clock import RealClock
from sglang_bana.store.lane_process import PROGRAM
from sglang_bana.store.mooncake import MooncakeClient, require_package
from sglang_bana.store.mooncake_lane import ANSWER, ORDER, LaneSettings, Verb
from sglang_bana.store.mooncake_options import MooncakeOptions

STAND_IN = Path(__file__).with_name("mooncake_stand_in.py")
HEADER = bytes(range(128))
# More than a socket holds at once.
PAYLOAD = Random(1).randbytes(3 * 2**20 + 7)
Open = Callable[..., MooncakeClient]


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the stand-in for Mooncake's package keeps objects, and is told its faults."""
    package = tmp_path / "mooncake"
    package.mkdir()
    (package / "__init__.py").write_text("")
    shutil.copy(STAND_IN, package / "store.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    return package


@pytest.fixture
def open_client(room: Path) -> Iterator[Open]:
    opened: list[MooncakeClient] = []

    def open_one(**changes: float) -> MooncakeClient:
        quick = {"call_timeout_s": 5.0, "restart_s": 0.05, "lanes": 2, **changes}
        opened.append(MooncakeClient(options(**quick), RealClock()))
        return opened[-1]

    yield open_one
    for client in opened:
        client.close()


def options(**changes: float) -> MooncakeOptions:
    return msgspec.convert({"master": "127.0.0.1:50051", **changes}, MooncakeOptions)


def get(client: MooncakeClient, name: str, size_bytes: int) -> tuple[ReadOutcome, bytes]:
    header, payload = bytearray(len(HEADER)), bytearray(size_bytes)
    outcome = client.get(name, memoryview(header), memoryview(payload))
    return outcome, bytes(header + payload)


def await_outcome(call: Callable[[], object], wanted: object) -> None:
    """Until a new lane has been started."""
    end_s = time.monotonic() + 60
    while call() is not wanted:
        assert time.monotonic() < end_s
        time.sleep(0.05)


def test_objects_come_back_as_they_went(open_client: Open, room: Path) -> None:
    client = open_client()
    assert client.put("bana/1/a", HEADER, memoryview(PAYLOAD)) is WriteOutcome.WRITTEN
    assert get(client, "bana/1/a", len(PAYLOAD)) == (ReadOutcome.READ, HEADER + PAYLOAD)
    assert get(client, "bana/1/a", len(PAYLOAD) - 1)[0] is ReadOutcome.SHORT
    assert get(client, "bana/1/b", 10)[0] is ReadOutcome.MISSING
    assert client.remove("bana/1/a") is WriteOutcome.DROPPED
    assert client.remove("bana/1/a") is WriteOutcome.MISSING
    assert client.counts() == {}
    # No memory of a lane joins the pool.
    expected = ("127.0.0.1", "P2PHANDSHAKE", 0, 64 * 2**20, "tcp", "", "127.0.0.1:50051")
    assert (room / "settings").read_text() == repr(expected)


def test_a_full_pool_is_full(open_client: Open, room: Path) -> None:
    client = open_client()
    (room / "fault").write_text("full")
    assert client.put("a", HEADER, memoryview(PAYLOAD)) is WriteOutcome.FULL


def test_what_no_buffer_holds_is_refused(open_client: Open) -> None:
    client = open_client(buffer_bytes=2**20)
    assert client.put("a", HEADER, memoryview(PAYLOAD)) is WriteOutcome.REFUSED


def test_a_lane_that_rests_leaves_the_calls_to_others(open_client: Open, room: Path) -> None:
    client = open_client(lanes=2, restart_s=600.0)
    (room / "fault").write_text("crash")
    assert get(client, "a", 1)[0] is ReadOutcome.FAILED
    (room / "fault").unlink()
    assert [get(client, "a", 1)[0] for _ in range(5)] == [ReadOutcome.MISSING] * 5


def test_a_call_that_hangs_is_late_and_costs_a_lane_only(open_client: Open, room: Path) -> None:
    client = open_client(call_timeout_s=1.0)
    client.put("a", HEADER, memoryview(PAYLOAD))
    (room / "fault").write_text("hang")
    begun_s = time.monotonic()
    assert get(client, "a", len(PAYLOAD))[0] is ReadOutcome.LATE
    assert time.monotonic() - begun_s < 30
    (room / "fault").unlink()
    await_outcome(lambda: get(client, "a", len(PAYLOAD))[0], ReadOutcome.READ)
    assert client.counts()["late_calls"] >= 1


def test_a_client_that_crashes_ends_its_lane_only(open_client: Open, room: Path) -> None:
    client = open_client()
    client.put("a", HEADER, memoryview(PAYLOAD))
    (room / "fault").write_text("crash")
    assert get(client, "a", len(PAYLOAD))[0] is ReadOutcome.FAILED
    (room / "fault").unlink()
    await_outcome(lambda: get(client, "a", len(PAYLOAD))[0], ReadOutcome.READ)


def test_more_calls_than_lanes_end_in_time_too(open_client: Open, room: Path) -> None:
    client = open_client(lanes=1, call_timeout_s=0.5)
    (room / "fault").write_text("hang")
    outcomes: list[WriteOutcome] = []
    threads = [
        threading.Thread(target=lambda: outcomes.append(client.remove("a"))) for _ in range(4)
    ]
    begun_s = time.monotonic()
    (room / "a").write_text("")
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert time.monotonic() - begun_s < 30
    assert len(outcomes) == 4


def test_closing_leaves_no_process(open_client: Open, room: Path) -> None:
    before = {child.pid for child in psutil.Process().children()}
    client = open_client()
    lanes = [child for child in psutil.Process().children() if child.pid not in before]
    assert lanes
    client.close()
    assert not any(lane.is_running() for lane in lanes)
    assert client.put("a", HEADER, memoryview(PAYLOAD)) is WriteOutcome.FAILED


def test_a_lane_ends_with_its_daemon_even_in_the_middle_of_a_call(room: Path) -> None:
    settings = LaneSettings("127.0.0.1:1", "P2PHANDSHAKE", "127.0.0.1", 2**20, 1000)
    (room / "fault").write_text("hang")
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            lane = subprocess.Popen([*PROGRAM, msgspec.json.encode(settings)], stdin=theirs)
        ours.settimeout(60)
        assert ours.recv(ANSWER.size, socket.MSG_WAITALL) == ANSWER.pack(0, 0)
        ours.sendall(ORDER.pack(Verb.GET, 1, 8) + b"a")
    assert lane.wait(30) == 0


def test_a_master_that_refuses_is_named_at_the_start(open_client: Open, room: Path) -> None:
    (room / "fault").write_text("refuse")
    before = psutil.Process().children()
    with pytest.raises(ConfigError, match="50051: its setup answered -1; start"):
        open_client()
    assert psutil.Process().children() == before


def test_a_client_that_cannot_be_loaded_says_why(open_client: Open, room: Path) -> None:
    (room / "store.py").write_text("raise ImportError('libibverbs.so.1: no such file')")
    with pytest.raises(ConfigError, match="libibverbs"):
        open_client()


def test_without_the_package_the_next_step_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mooncake, "MODULE", "a_module_that_is_not_there")
    with pytest.raises(ConfigError, match=r"pip install 'bana\[mooncake\]'"):
        require_package()


@pytest.mark.parametrize(
    "changes",
    [
        {"master": ""},
        {"master": "host"},
        {"master": "host:0"},
        {"master": "host:x"},
        {"lanes": 0},
        {"lanes": 33},
        {"buffer_bytes": 1},
        {"max_pages": 0},
        {"call_timeout_s": 0},
        {"restart_s": 601},
    ],
)
def test_options_out_of_their_bounds_are_refused(changes: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="allowed"):
        MooncakeOptions(**{"master": "host:1", **changes})


def test_the_address_of_a_master_may_be_a_number() -> None:
    assert MooncakeOptions("[::1]:50051").address == ("::1", 50051)
    assert MooncakeOptions("store.example:7").address == ("store.example", 7)
