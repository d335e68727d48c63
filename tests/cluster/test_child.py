"""One child: what is killed and removed with it, and what is not."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from sglang_bana.cluster import child
from sglang_bana.cluster.child import Child
from sglang_bana.cluster.commands import Command

DEADLINE_S = 30.0
# Maps every file that it is told of, creating those that are missing.
MAPPER = """
import mmap, os, sys, time
for path in sys.argv[1:]:
    with open(path, "a+b") as file:
        file.truncate(4096)
        globals()[path] = mmap.mmap(file.fileno(), 4096)
time.sleep(600)
"""


@pytest.fixture
def shared() -> Iterator[Path]:
    folder = Path("/dev/shm")
    mark = f"bana_test_{uuid.uuid4().hex}"
    yield folder / mark
    for path in folder.glob(f"{mark}*"):
        for inner in path.iterdir() if path.is_dir() else ():
            inner.unlink()
        path.rmdir() if path.is_dir() else path.unlink()


def test_the_number_of_a_group_that_is_gone_is_never_signalled(tmp_path, monkeypatch) -> None:
    signalled: list[int] = []

    async def live() -> Child:
        ended = Child(Command("x", ("true",)), tmp_path / "log")
        await asyncio.wait_for(ended.status, DEADLINE_S)
        assert await ended.wait_gone()
        return ended

    ended = asyncio.run(live())
    # Its number now belongs to a group of somebody else.
    monkeypatch.setattr(child, "list_group", lambda _: (os.getpid(),))
    monkeypatch.setattr(os, "killpg", lambda pgid, _: signalled.append(pgid))
    ended.kill_group()
    assert signalled == []


def test_only_shared_memory_that_came_with_the_child_is_its_own(tmp_path: Path, shared) -> None:
    own, earlier = Path(f"{shared}_own"), Path(f"{shared}_earlier")
    weights = Path(f"{shared}_folder") / "model.safetensors"
    earlier.write_bytes(bytes(4096))
    weights.parent.mkdir()
    paths = tuple(str(path) for path in (earlier, weights, own))

    async def look() -> frozenset[str]:
        running = Child(Command("x", (sys.executable, "-c", MAPPER, *paths)), tmp_path / "log")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DEADLINE_S):
                while not running.segments():
                    await asyncio.sleep(0.02)
        found = running.segments()
        running.kill_group()
        await running.status
        return found

    # The last file to be mapped: once it is seen, the others are mapped as well.
    assert asyncio.run(look()) == {str(own)}
