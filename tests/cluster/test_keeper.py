"""A process that cannot even be started is one that ended early."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

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
