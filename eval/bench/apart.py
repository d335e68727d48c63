"""Benchmarks that need SGLang or torch: a module of sglang_bana in a process of its own."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bana.eval.bench.children import ChildPlan, running
from bana.eval.bench.errors import BenchError
from bana.eval.bench.harness import Session

TIMEOUT_S = 3_600.0


def run_apart(session: Session, module: str, arguments: Sequence[str]) -> bytes:
    """What `python -m MODULE --json FILE ARGUMENTS` writes; its lines are passed on meanwhile."""
    with tempfile.TemporaryDirectory(prefix="bb-") as name:
        output = Path(name) / "out.json"
        command = [sys.executable, "-m", module, "--json", str(output), *arguments]
        cores = frozenset(os.sched_getaffinity(0))
        plan = ChildPlan(module.rpartition(".")[2], command, cores, Path(name) / "out.log")
        with running(plan) as child:
            status = child.follow(session.say, TIMEOUT_S)
        if status != 0:
            raise BenchError(f"{module} ended with status {status}; its lines above say why")
        return output.read_bytes()
