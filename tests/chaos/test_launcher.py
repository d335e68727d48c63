"""The launcher itself is killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.chaos, pytest.mark.timeout(900)]


def test_nothing_survives_a_killed_launcher_not_even_a_stopped_instance(
    start_cluster, llama_fixture: Path
) -> None:
    with start_cluster("--model", str(llama_fixture), "--instances", "2") as cluster:
        assert len(cluster.survivors()) > 4
        mapped = cluster.shared_memory()
        assert mapped
        os.killpg(os.getpgid(cluster.pid_of("instance-1")), signal.SIGSTOP)
        cluster.launcher.kill()
        cluster.launcher.wait()
        assert cluster.wait_gone() == {}
        assert {path for path in mapped if path.exists()} == set()
