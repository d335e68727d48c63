"""The front door and the launcher themselves are killed."""

from __future__ import annotations

import json
import os
import signal
import time
from http.client import HTTPResponse, IncompleteRead
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.chaos, pytest.mark.timeout(900)]

# A new front door imports its modules and asks the instances once: a few seconds.
BACK_S = 15.0
STREAM_END_S = 5.0


def answers_again(cluster) -> bool:
    try:
        return len(cluster.greedy_ids([9, 8, 7], 2)) == 2
    except (URLError, ConnectionError, TimeoutError):
        return False


def open_stream(cluster) -> HTTPResponse:
    """A stream that lasts for minutes, once its first event has come."""
    sampling = {"max_new_tokens": 4000, "temperature": 0, "ignore_eos": True}
    body = {"input_ids": [9, 8, 7], "sampling_params": sampling, "stream": True}
    headers = {"Content-Type": "application/json"}
    request = Request(f"{cluster.url}/generate", json.dumps(body).encode(), headers)
    stream = urlopen(request, timeout=BACK_S)
    assert stream.readline().startswith(b"data: ")
    return stream


def read_to_end(stream: HTTPResponse) -> bytes:
    """What still comes; TimeoutError where neither bytes nor an end do."""
    with stream:
        try:
            return stream.read()
        except IncompleteRead as cut:
            return cut.partial
        except ConnectionError:
            return b""


def test_killed_front_door_comes_back_and_instances_keep_their_state(
    start_cluster, llama_fixture: Path
) -> None:
    with start_cluster("--model", str(llama_fixture)) as cluster:
        instance, door = cluster.pid_of("instance-0"), cluster.pid_of("front-door")
        stream = open_stream(cluster)
        os.kill(door, signal.SIGKILL)
        killed_s = time.monotonic()
        # The client of the stream is not left hanging: its connection is cut.
        assert b"[DONE]" not in read_to_end(stream)
        assert time.monotonic() - killed_s < STREAM_END_S
        while not answers_again(cluster):
            assert time.monotonic() - killed_s < BACK_S, cluster.log_tail()
            time.sleep(0.2)
        assert time.monotonic() - killed_s < BACK_S
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
