"""Clients against a real daemon loop in this process: sockets, threads and shared memory."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import zmq

from bana.radix_global.admin_messages import AskStatus, Status
from bana.radix_global.client import StoreClient
from bana.radix_global.client_settings import ClientSettings
from bana.radix_global.daemon.daemon import DaemonPlan, StoreDaemon
from bana.radix_global.daemon.limits import StoreLimits
from bana.radix_global.daemon.works import Tier, WorksPlan
from bana.radix_global.link import LinkState
from bana.radix_global.messages import (
    PROTOCOL,
    Attach,
    Attached,
    Lost,
    Ping,
    WantOutcome,
    decode_event,
    decode_request,
    encode,
)
from bana.radix_global.stores.memory import MemoryOptions, MemoryStore
from bana.radix_global.stores.store import Refresh, RefreshOutcome
from sglang_bana.cluster.procfs import read_start_ticks
from sglang_bana.store.asking import StoreAddress, ask_store
from sglang_bana.store.clock import RealClock
from sglang_bana.store.processes import PidWatch

from .spaces import SPACE

DEADLINE_S = 30.0
PAGE_BYTES = 4096


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


def await_true(holds: Callable[[], object]) -> None:
    end_s = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < end_s
        time.sleep(0.005)


class Life:
    """One life of a daemon, in a thread."""

    def __init__(self, folder: Path, store: MemoryStore | None, epoch: int) -> None:
        self.endpoint = f"ipc://{folder}/store.sock"
        works = WorksPlan(
            arena_path=Path(f"/dev/shm/bana-test-client-{os.getpid()}-{id(self)}.arena"),
            arena_bytes=400_000,
            slot_bytes=0,
            epoch=epoch,
            reader="completion",
            reader_options={},
            placement="one",
            placement_options={},
        )
        plan = DaemonPlan(
            endpoint=self.endpoint,
            secret="secret",
            pid=os.getpid(),
            index_pages=1000,
            max_leases=1000,
            refresh_s=60.0,
            limits=StoreLimits(),
            works=works,
        )
        clock = RealClock()
        tiers = (Tier(store, "memory", 1),) if store is not None else ()
        self._daemon = StoreDaemon(plan, tiers, PidWatch(), clock, lambda line: None, NoPins())
        self._stop = os.eventfd(0)
        self._thread = threading.Thread(target=self._daemon.serve, args=(self._stop,))
        self._thread.start()

    def end(self) -> None:
        os.eventfd_write(self._stop, 1)
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()
        assert self._daemon.close(5.0) == 0


class NoPins:
    """Nothing was ever pinned."""

    def load(self) -> tuple[bytes, ...]:
        return ()

    def save(self, pins: Sequence[bytes]) -> None: ...


class KeptStore(MemoryStore):
    """A tier that outlives the daemon, as a directory would."""

    def refresh(self) -> Refresh:
        return Refresh(RefreshOutcome.WHOLE, tuple(self.pages()))

    def close(self) -> None: ...


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[[int], Life]]:
    """A function: an epoch in, a life of the daemon with the same tier out."""
    lives: list[Life] = []
    store = KeptStore(MemoryOptions(2**22), RealClock())

    def start(epoch: int) -> Life:
        lives.append(Life(tmp_path, store, epoch))
        return lives[-1]

    yield start
    for life in lives:
        if life._thread.is_alive():
            life.end()


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Callable[..., StoreClient]]:
    """A function: settings in, a started client out."""
    clients: list[StoreClient] = []

    def start(
        wake: Callable[[], None] = lambda: None,
        tell: Callable[[LinkState, str], None] = lambda state, reason: None,
        **changes: Any,
    ) -> StoreClient:
        settings: dict[str, Any] = {
            "endpoint": f"ipc://{tmp_path}/store.sock",
            "name": "client",
            "namespace": SPACE,
            "page_bytes": PAGE_BYTES,
            "pid": os.getpid(),
            "start_ticks": read_start_ticks(os.getpid()),
            "stock_slots": 4,
            "ping_interval_s": 0.1,
            "backoff_max_s": 0.1,
        }
        client = StoreClient(ClientSettings(**{**settings, **changes}), RealClock(), wake, tell)
        clients.append(client)
        client.start()
        return client

    yield start
    for client in clients:
        client.close()


def publish(client: StoreClient, numbers: range, after: bytes = b"") -> None:
    slots = None
    end_s = time.monotonic() + DEADLINE_S
    while slots is None:
        assert time.monotonic() < end_s
        slots = client.take_slots(len(numbers))
        time.sleep(0.002)
    for number, slot in zip(numbers, slots, strict=True):
        view = client.view(slot)
        assert view is not None
        view[:] = key(number) * (PAGE_BYTES // 16)
    client.publish(after, b"".join(map(key, numbers)), slots)


def want(client: StoreClient, numbers: range) -> Any:
    now_s = time.monotonic()
    keys = b"".join(map(key, numbers))
    wanted = client.prefetch(keys, now_s + 1, now_s + DEADLINE_S)
    await_true(lambda: wanted.outcome is not None)
    return wanted


def test_what_one_client_publishes_another_restores(begin: Any, connect: Any) -> None:
    begin(5)
    one, two = connect(), connect()
    await_true(lambda: one.state is LinkState.ATTACHED)
    publish(one, range(3))
    await_true(lambda: one.counts.get("published_pages") == 3)
    await_true(lambda: two.state is LinkState.ATTACHED)
    wanted = want(two, range(4))
    assert wanted.outcome is WantOutcome.MISSING
    assert wanted.known is not None
    found = wanted.pages()
    assert found.pages == 3
    for number, slot in enumerate(found.slots):
        assert two.view(slot) == key(number) * (PAGE_BYTES // 16)
        assert two.is_valid(slot)
    await_true(lambda: two.tiers)
    assert two.tiers[0].name == "memory"
    two.release(wanted)


def test_an_arena_without_tiers_is_shared_all_the_same(tmp_path: Path, connect: Any) -> None:
    life = Life(tmp_path, None, 5)
    try:
        one, two = connect(), connect()
        await_true(lambda: one.state is two.state is LinkState.ATTACHED)
        publish(one, range(3))
        await_true(lambda: one.counts.get("published_pages") == 3)
        assert want(two, range(3)).pages().origins == b"\0\0\0"
    finally:
        life.end()


def test_a_client_that_finds_no_daemon_goes_on_without(connect: Any) -> None:
    client = connect()
    assert client.prefetch(key(1), 1.0, 2.0).outcome is WantOutcome.LOST
    assert client.take_slots(1) is None
    client.publish(b"", key(1), ())
    assert client.state is LinkState.AWAY
    assert client.reason


def test_a_daemon_that_comes_back_has_what_is_on_its_tiers(begin: Any, connect: Any) -> None:
    first = begin(5)
    woken = threading.Event()
    client = connect(wake=woken.set)
    await_true(lambda: client.state is LinkState.ATTACHED)
    publish(client, range(3))
    await_true(lambda: client.counts.get("published_pages") == 3)
    before = want(client, range(3))
    slot = before.pages().slots[0]
    assert client.is_valid(slot)
    taken = client.take_slots(1)
    woken.clear()
    first.end()
    await_true(lambda: before.outcome is WantOutcome.LOST)
    assert woken.wait(DEADLINE_S)
    assert before.pages().pages == 0
    assert not client.is_valid(slot)
    assert client.view(slot) is None
    second = begin(6)
    await_true(lambda: ask_status(second).report.counts.get("found_pages") == 3)
    await_true(lambda: client.state is LinkState.ATTACHED)
    client.publish(b"", key(9), taken)
    assert client.counts["dropped_pages"] == 1
    after = want(client, range(3))
    assert after.outcome is WantOutcome.COMPLETE
    assert after.pages().origins == b"\1\1\1"
    assert after.pages().slots[0].epoch == 6
    assert client.counts["lost"] == 1


def count_refusals(address: StoreAddress) -> int:
    answer = ask_store(address, lambda number, _: AskStatus(number), Status, DEADLINE_S)
    return answer.report.counts.get("refused_clients", 0)


def test_a_client_that_is_refused_says_why_and_asks_again(begin: Any, connect: Any) -> None:
    life = begin(5)
    told: list[tuple[LinkState, str]] = []
    client = connect(tell=lambda *news: told.append(news), start_ticks=1)
    address = StoreAddress(life.endpoint, "secret")
    await_true(lambda: count_refusals(address) > 3)
    assert client.state is LinkState.REFUSED
    assert "does not run here" in client.reason
    # However often it asks, whoever writes a log hears of it once.
    assert told == [(LinkState.REFUSED, client.reason)]


def test_whoever_listens_hears_of_every_other_state_and_cannot_end_the_client(
    begin: Any, connect: Any
) -> None:
    told: list[LinkState] = []

    def tell(state: LinkState, reason: str) -> None:
        told.append(state)
        raise RuntimeError(reason)

    life = begin(5)
    client = connect(tell=tell)
    await_true(lambda: client.state is LinkState.ATTACHED)
    life.end()
    await_true(lambda: client.state is LinkState.AWAY)
    begin(6)
    await_true(lambda: client.state is LinkState.ATTACHED)
    assert told[0] is told[-1] is LinkState.ATTACHED
    assert set(told[1:-1]) == {LinkState.AWAY}


def test_a_daemon_that_dies_before_it_answers_is_asked_again(tmp_path: Path, connect: Any) -> None:
    client = connect(attach_timeout_s=1000.0)
    for _ in range(2):
        with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
            socket.setsockopt(zmq.LINGER, 0)
            socket.bind(f"ipc://{tmp_path}/store.sock")
            assert socket.poll(int(DEADLINE_S * 1000))
            assert isinstance(decode_request(socket.recv_multipart()[1]), Attach)
    assert client.state is LinkState.AWAY


def test_a_closed_client_is_detached(begin: Any, connect: Any) -> None:
    life = begin(5)
    client = connect()
    await_true(lambda: client.state is LinkState.ATTACHED)
    client.close()
    assert client.state is LinkState.CLOSED
    await_true(lambda: not ask_status(life).report.owners)
    assert client.prefetch(key(1), 1.0, 2.0).outcome is WantOutcome.LOST
    client.close()


def test_a_wake_that_fails_costs_nothing_but_a_count(begin: Any, connect: Any) -> None:
    begin(5)

    def fail() -> None:
        raise RuntimeError("the engine's own")

    client = connect(wake=fail)
    await_true(lambda: client.state is LinkState.ATTACHED)
    assert want(client, range(1)).outcome is WantOutcome.MISSING
    await_true(lambda: client.counts.get("wake_faults"))
    assert client.state is LinkState.ATTACHED


def ask_status(life: Life) -> Status:
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(life.endpoint)
        socket.send(encode(AskStatus(1)))
        assert socket.poll(int(DEADLINE_S * 1000))
        answer = decode_event(socket.recv())
        assert isinstance(answer, Status)
        return answer


def test_noise_on_the_socket_is_counted_and_hurts_nobody(begin: Any, connect: Any) -> None:
    life = begin(5)
    client = connect()
    await_true(lambda: client.state is LinkState.ATTACHED)
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(life.endpoint)
        for noise in ([b""], [b"\xff" * 100], [b"a", b"b", b"c"], [encode(Lost(1))]):
            socket.send_multipart(noise)
        await_true(lambda: ask_status(life).report.counts.get("malformed_messages") == 4)
    assert want(client, range(1)).outcome is WantOutcome.MISSING


def test_whoever_does_not_read_is_cut_off_and_told_so(begin: Any, connect: Any) -> None:
    life = begin(5)
    ticks = read_start_ticks(os.getpid()) or 0
    hello = Attach(PROTOCOL, b"c" * 16, os.getpid(), ticks, PAGE_BYTES, SPACE, "deaf")
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVHWM, 1)
        socket.connect(life.endpoint)
        socket.send(encode(hello))
        sent = 0
        while not ask_status(life).report.counts.get("cuts"):
            for _ in range(2000):
                socket.send(encode(Ping(1)))
            sent += 2000
            assert sent < 200_000
        assert ask_status(life).report.owners[0].state == "cut"
        heard = []
        while socket.poll(500):
            heard.append(decode_event(socket.recv()))
        socket.send(encode(Ping(2)))
        await_true(lambda: socket.poll(100))
        assert isinstance(heard[0], Attached)
        assert isinstance(decode_event(socket.recv()), Lost)
        socket.send(encode(hello))
        await_true(lambda: socket.poll(100))
        assert isinstance(decode_event(socket.recv()), Attached)
