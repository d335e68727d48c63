"""A tied process dies with its parent, stopped or not, and never serves for a dead one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

DEADLINE_S = 30.0
CHILD = (
    "import os, sys, time\n"
    "from sglang_bana.lifeline import die_with_parent\n"
    "die_with_parent(int(sys.argv[1]))\n"
    "print('tied', os.getpid(), flush=True)\n"
    "time.sleep(600)\n"
)
PARENT = (
    "import os, subprocess, sys, time\n"
    "subprocess.Popen([sys.executable, '-c', sys.argv[1], str(os.getpid())])\n"
    "time.sleep(600)\n"
)


def start_family() -> tuple[subprocess.Popen[str], int]:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, CHILD], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    word, pid = parent.stdout.readline().split()
    assert word == "tied"
    return parent, int(pid)


def wait_gone(pid: int) -> bool:
    end_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < end_s:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("state", ["running", "stopped"])
def test_child_dies_when_its_parent_is_killed(state: str) -> None:
    parent, child = start_family()
    if state == "stopped":
        os.kill(child, signal.SIGSTOP)
    parent.kill()
    parent.communicate()
    assert wait_gone(child)


def test_a_process_with_another_parent_ends_with_a_reason() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHILD, "1"], capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert done.returncode == 1
    assert done.stderr.startswith("bana: started for process 1, but the parent is ")


def test_lifeline_loads_nothing_heavy() -> None:
    code = "import sys, sglang_bana.lifeline; print({'torch', 'sglang'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "set()"
