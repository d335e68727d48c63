"""Attention on a CPU beside torch_native: measured where torch may be imported, reported here."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from bana.eval.bench.children import ChildPlan, running
from bana.eval.bench.errors import BenchError
from bana.eval.bench.harness import Bench, Scale, Session
from bana.slo.figures import Figure

MODULE = "sglang_bana.engine.bench_attention"
TIMEOUT_S = 3_600.0


class Measured(msgspec.Struct, frozen=True):
    """What MODULE writes."""

    settings: Mapping[str, object]
    figures: Mapping[str, Figure]


def measure_attention(session: Session) -> Mapping[str, Figure]:
    """The figures of MODULE, run in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="bb-") as name:
        output = Path(name) / "attention.json"
        command = [sys.executable, "-m", MODULE, "--json", str(output)]
        command += ["--seed", str(session.request.seed)]
        if session.request.scale is Scale.QUICK:
            command.append("--quick")
        cores = frozenset(os.sched_getaffinity(0))
        plan = ChildPlan("attention", command, cores, Path(name) / "attention.log")
        with running(plan) as child:
            status = child.follow(session.say, TIMEOUT_S)
        if status != 0:
            raise BenchError(f"{MODULE} ended with status {status}; its lines above say why")
        measured = msgspec.json.decode(output.read_bytes(), type=Measured)
    session.notes["measured_with"] = measured.settings
    return measured.figures


ATTENTION = Bench(
    help="bana_cpu beside torch_native: prefill, cached prefix, decode; begins anew if interrupted",
    settings=lambda _: {"module": MODULE},
    measure=measure_attention,
)
