"""A small model with random weights, for smokes: generated in seconds, answered in milliseconds."""

from __future__ import annotations

import sys
from pathlib import Path

from bana.eval.bench.children import ChildPlan, running
from bana.eval.bench.errors import BenchError

FIXTURE = "fixture"
MODULE = "sglang_bana.engine.fixtures"
SEED = 20
TIMEOUT_S = 300.0


def make_fixture(folder: Path, cores: frozenset[int]) -> Path:
    """The model's folder, made in `folder` by a process on `cores`."""
    out = folder / FIXTURE
    command = [sys.executable, "-m", MODULE, "llama", str(SEED), str(out)]
    said: list[str] = []
    plan = ChildPlan(FIXTURE, command, cores, folder / f"{FIXTURE}.log")
    with running(plan) as child:
        status = child.follow(said.append, TIMEOUT_S)
    if status != 0:
        raise BenchError(f"{MODULE} ended with status {status}: {' '.join(said[-3:])}")
    return out
