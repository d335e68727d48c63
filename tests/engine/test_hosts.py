"""Clusters on two hosts that share a directory, and a third that one of them is attached to."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from bana.radix_global.admin_messages import AskStatus, Status
from sglang_bana.store.asking import ask_store, find_store

pytestmark = [pytest.mark.engine, pytest.mark.chaos, pytest.mark.full, pytest.mark.timeout(900)]

CLONE_NEWNET = 0x40000000
DEADLINE_S = 60.0
PAGE = 16
PAGES = 40
ARGUMENTS = ("--page-size", "16", "--max-total-tokens", "4096", "--chunked-prefill-size", "128")
CONFIG = """
[store]
enabled = true
arena_bytes = 67_108_864
restore = "always"
placement = "all"
refresh_s = 0.5

[[store.tiers]]
kind = "directory"
path = "{path}"
capacity_bytes = 268_435_456
options = {{ segment_bytes = 1_048_576, writers = 2 }}
"""


class Relay:
    """A port of our loopback behind which is one of a host's loopback."""

    def __init__(self, keeper_pid: int, port: int) -> None:
        self._network = Path(f"/proc/{keeper_pid}/ns/net")
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        # Closing alone would not wake the thread that accepts.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client:
            enter_network(self._network)
            with socket.create_connection(("127.0.0.1", self._port)) as server:
                back = threading.Thread(target=copy, args=(server, client), daemon=True)
                back.start()
                copy(client, server)
                back.join()


def enter_network(network: Path) -> None:
    """Sockets that this thread opens from now on are of that network."""
    descriptor = os.open(network, os.O_RDONLY)
    try:
        status = ctypes.CDLL(None, use_errno=True).setns(descriptor, CLONE_NEWNET)
        assert status == 0, os.strerror(ctypes.get_errno())
    finally:
        os.close(descriptor)


def copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65_536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


@contextmanager
def start_on(host: Any, start_cluster: Any, config: Path, model: Path) -> Iterator[Any]:
    """A cluster of one instance, with a store, that is reached by a relay."""
    flags = ("--config", str(config), "--model", str(model), "--instances", "1")
    with start_cluster(*flags, sglang_args=ARGUMENTS, host=host.entry) as cluster:
        port = urlsplit(cluster.url).port
        assert port is not None
        relay = Relay(host.keeper.pid, port)
        cluster.url = relay.url
        try:
            yield cluster
        finally:
            relay.close()


def ask(cluster: Any, prompt: list[int]) -> tuple[list[int], dict[str, Any]]:
    """The ids that follow greedily, and where the prompt came from."""
    sampling = {"max_new_tokens": 12, "temperature": 0, "ignore_eos": True}
    told = cluster.post("/generate", {"input_ids": prompt, "sampling_params": sampling})
    return told["output_ids"], told["meta_info"].get("cached_tokens_details") or {}


def await_on_tier(cluster: Any, pages: int) -> None:
    """Return when the store of that cluster knows of so many on its directory."""
    # Its socket is a file, which every host sees.
    address = find_store(str(cluster.run_dir), {})
    end_s = time.monotonic() + DEADLINE_S
    while True:
        report = ask_store(address, lambda number, _: AskStatus(number), Status, 5.0).report
        if sum(place.pages for place in report.places[1:]) >= pages:
            return
        assert time.monotonic() < end_s, report
        time.sleep(0.1)


def test_an_attached_instance_answers_from_what_another_host_computed(
    hosts: tuple[Any, Any], start_cluster: Any, llama_fixture: Path, tmp_path: Path
) -> None:
    config = tmp_path / "bana.toml"
    config.write_text(CONFIG.format(path=tmp_path / "shared"))
    draw = random.Random(0)
    prompt = [draw.randrange(3, 400) for _ in range(PAGES * PAGE + 1)]
    with (
        start_on(hosts[0], start_cluster, config, llama_fixture) as one,
        start_on(hosts[1], start_cluster, config, llama_fixture) as two,
        start_cluster("--upstream", two.url) as third,
    ):
        computed, _ = ask(one, prompt)
        cached, details = ask(one, prompt)
        assert cached == computed
        assert details["device"] == PAGES * PAGE
        for cluster in (one, two):
            await_on_tier(cluster, PAGES)
        restored, details = ask(third, prompt)
        assert restored == computed
        assert details["tier_1"] == PAGES * PAGE
