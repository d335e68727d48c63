from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import psutil
import pytest

from bana.eval.bench.children import ChildPlan, confined, pin_process, running
from bana.eval.bench.errors import BenchError

CORES = frozenset(os.sched_getaffinity(0))


def plan(tmp_path: Path, program: str, cores: frozenset[int] = CORES) -> ChildPlan:
    return ChildPlan("child", [sys.executable, "-c", program], cores, tmp_path / "child.log")


def is_gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
inner = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(inner.pid, flush=True)
time.sleep(600)
"""


def start_and_interrupt(started: ChildPlan, pids: list[int]) -> None:
    with running(started) as child:
        child.wait_until(lambda: started.log.read_text().endswith("\n"), 30)
        pids += [child.pid, int(started.log.read_text())]
        assert not any(is_gone(pid) for pid in pids)
        raise KeyboardInterrupt


def test_nothing_is_left_when_the_block_is_left_by_an_interrupt(tmp_path: Path) -> None:
    pids: list[int] = []

    with pytest.raises(KeyboardInterrupt):
        start_and_interrupt(plan(tmp_path, STUBBORN), pids)

    assert len(pids) == 2
    assert all(is_gone(pid) for pid in pids)


ORPHAN = """
import sys, pathlib
from bana.eval.bench.children import ChildPlan, running
plan = ChildPlan("inner", [sys.executable, "-c", "import time; time.sleep(600)"],
                 frozenset({core}), pathlib.Path(sys.argv[1]))
with running(plan) as inner:
    print(inner.pid, flush=True)
    import time; time.sleep(600)
"""


def test_a_killed_benchmark_takes_its_servers_with_it(tmp_path: Path) -> None:
    program = ORPHAN.replace("core", str(min(CORES)))
    outer = ChildPlan(
        "outer",
        [sys.executable, "-c", program, str(tmp_path / "inner.log")],
        CORES,
        tmp_path / "outer.log",
    )
    with running(outer) as child:
        child.wait_until(lambda: outer.log.read_text().endswith("\n"), 60)
        inner = int(outer.log.read_text())
        psutil.Process(child.pid).kill()
        deadline_s = time.monotonic() + 30
        while not is_gone(inner) and time.monotonic() < deadline_s:
            time.sleep(0.05)
        assert is_gone(inner)


def test_a_server_that_ends_early_is_reported_with_its_last_words(tmp_path: Path) -> None:
    with (
        pytest.raises(BenchError, match=r"status 3(.|\n)*no such model"),
        running(plan(tmp_path, "print('no such model'); raise SystemExit(3)")) as child,
    ):
        child.wait_until(lambda: False, 60)


def test_a_server_that_is_never_ready_is_given_up(tmp_path: Path) -> None:
    with (
        pytest.raises(BenchError, match="not ready within"),
        running(plan(tmp_path, "import time; time.sleep(600)")) as child,
    ):
        child.wait_until(lambda: False, 0.1)


def test_follow_passes_every_line_on_and_returns_the_status(tmp_path: Path) -> None:
    lines: list[str] = []
    with running(plan(tmp_path, "print('one'); print('two'); raise SystemExit(4)")) as child:
        status = child.follow(lines.append, 60)

    assert (status, lines) == (4, ["one", "two"])


def test_cores_are_given_moved_and_put_back(tmp_path: Path) -> None:
    first, last = frozenset({min(CORES)}), frozenset({max(CORES)})
    with running(plan(tmp_path, "import time; time.sleep(600)", first)) as child:
        assert os.sched_getaffinity(child.pid) == first
        pin_process(child.pid, last)
        assert os.sched_getaffinity(child.pid) == last
    with confined(first):
        assert os.sched_getaffinity(0) == first
    assert os.sched_getaffinity(0) == CORES
