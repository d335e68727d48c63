"""A process that cannot even be started is one that ended early."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from types import SimpleNamespace

import pytest

from sglang_bana.cluster.commands import Command
from sglang_bana.cluster.keeper import Keeper, Post, Stage
from sglang_bana.config import SupervisorConfig

DEADLINE_S = 30.0


def test_a_process_that_cannot_be_started_is_tried_again_and_then_given_up(tmp_path: Path) -> None:
    said: list[str] = []
    post = Post(
        command=Command("x", ("true",)),
        log=tmp_path / "no such folder" / "x.log",
        temp_dir=tmp_path / "x.tmp",
        rules=SupervisorConfig(backoff_initial_s=0.01, max_start_failures=3),
        janitor=SimpleNamespace(tell=lambda note: None),
        say=said.append,
    )

    async def keep() -> Keeper:
        keeper = Keeper(post)
        await asyncio.wait_for(keeper.run(), DEADLINE_S)
        return keeper

    keeper = asyncio.run(keep())
    assert keeper.stage is Stage.GIVEN_UP
    assert keeper.restarts == 2
    assert sum("cannot be started" in line for line in said) == 3
    assert "no such folder" in said[0]


def test_a_log_that_cannot_be_cut_is_said_once_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    post = Post(
        command=Command("x", ("true",)),
        log=tmp_path / "x.log",
        temp_dir=tmp_path / "x.tmp",
        rules=SupervisorConfig(),
        janitor=SimpleNamespace(tell=lambda note: None),
        say=said.append,
    )

    def refuse(path: Path, max_bytes: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    keeper = Keeper(post)
    with monkeypatch.context() as full_disk:
        full_disk.setattr("sglang_bana.cluster.keeper.cut_log", refuse)
        for _ in range(3):
            keeper.note_segments()
        keeper.kill("a test")
        keeper.terminate()
    faults = [line for line in said if "No space left" in line]
    fault = f"x: its log cannot be cut (No space left on device): {tmp_path}/x.log; "
    assert faults == [fault + "free some space there"]
    keeper.note_segments()
    assert len(said) == len(faults) + 1
