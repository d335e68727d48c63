"""The front door and the launcher themselves are killed."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from urllib.error import URLError

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.chaos, pytest.mark.timeout(900)]

DEADLINE_S = 60.0


def answers_again(cluster) -> bool:
    try:
        return len(cluster.greedy_ids([9, 8, 7], 2)) == 2
    except (URLError, ConnectionError, TimeoutError):
        return False


def test_killed_front_door_comes_back_and_instances_keep_their_state(
    start_cluster, llama_fixture: Path
) -> None:
    with start_cluster("--model", str(llama_fixture)) as cluster:
        instance, door = cluster.pid_of("instance-0"), cluster.pid_of("front-door")
        os.kill(door, signal.SIGKILL)
        end_s = time.monotonic() + DEADLINE_S
        while not answers_again(cluster):
            assert time.monotonic() < end_s, cluster.log_tail()
            time.sleep(0.2)
        assert cluster.pid_of("instance-0") == instance
        assert cluster.pid_of("front-door") != door


def test_nothing_survives_a_killed_launcher_not_even_a_stopped_instance(
    start_cluster, llama_fixture: Path
) -> None:
    with start_cluster("--model", str(llama_fixture), "--instances", "2") as cluster:
        assert len(cluster.survivors()) > 4
        os.killpg(os.getpgid(cluster.pid_of("instance-1")), signal.SIGSTOP)
        cluster.launcher.kill()
        cluster.launcher.wait()
        assert cluster.wait_gone() == {}


def test_stopping_leaves_no_shared_memory_and_no_sockets(
    start_cluster, llama_fixture: Path
) -> None:
    before = set(os.listdir("/dev/shm"))
    with start_cluster("--model", str(llama_fixture)) as cluster:
        run_dir = cluster.run_dir
        assert len(cluster.greedy_ids([1, 2, 3], 2)) == 2
    assert set(os.listdir("/dev/shm")) <= before
    assert [p for p in run_dir.rglob("*") if p.is_socket()] == []
