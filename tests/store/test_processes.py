"""Which process is which, and who serves at an address."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from bana.slo.errors import ConfigError
from sglang_bana.cluster.procfs import read_start_ticks
from sglang_bana.store.main import lock_endpoint, main
from sglang_bana.store.processes import PidWatch


def test_a_process_that_dies_makes_its_descriptor_readable() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    watch = PidWatch()
    descriptor = watch.watch(child.pid, read_start_ticks(child.pid) or 0)
    assert descriptor is not None
    assert select.select([descriptor], [], [], 0)[0] == []
    child.communicate(b"\n")
    assert select.select([descriptor], [], [], 10)[0] == [descriptor]
    watch.forget(descriptor)


@pytest.mark.parametrize("pid", [2**22 + 1, -5, 0])
def test_a_process_that_is_none_is_not_watched(pid: int) -> None:
    assert PidWatch().watch(pid, 1) is None


def test_another_process_of_the_same_number_is_not_watched() -> None:
    before = len(os.listdir("/proc/self/fd"))
    assert PidWatch().watch(os.getpid(), 1) is None
    assert len(os.listdir("/proc/self/fd")) == before


def test_one_daemon_serves_at_an_address(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/store.sock"
    held = lock_endpoint(endpoint)
    with pytest.raises(ConfigError, match="another daemon"):
        lock_endpoint(endpoint)
    os.close(held)
    os.close(lock_endpoint(endpoint))


def test_an_address_that_cannot_be_had_is_refused() -> None:
    with pytest.raises(ConfigError):
        lock_endpoint("ipc:///nowhere/at/all")


def test_orders_that_cannot_be_read_end_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "spec.json").write_text('{"store": 1}')
    assert main([str(tmp_path / "spec.json")]) == 2
    assert main([str(tmp_path / "none.json")]) == 2
    assert main([]) == 2
    assert "cannot read the store's spec" in capsys.readouterr().err
