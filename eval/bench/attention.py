"""Attention on a CPU beside torch_native: measured where torch may be imported, reported here."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from bana.eval.bench.apart import run_apart
from bana.eval.bench.harness import Bench, Scale, Session
from bana.slo.figures import Figure

MODULE = "sglang_bana.engine.bench_attention"


class Measured(msgspec.Struct, frozen=True):
    """What MODULE writes."""

    settings: Mapping[str, object]
    figures: Mapping[str, Figure]


def measure_attention(session: Session) -> Mapping[str, Figure]:
    """The figures of MODULE, run in a process of its own."""
    arguments = ["--seed", str(session.request.seed)]
    if session.request.scale is Scale.QUICK:
        arguments.append("--quick")
    measured = msgspec.json.decode(run_apart(session, MODULE, arguments), type=Measured)
    session.notes["measured_with"] = measured.settings
    return measured.figures


ATTENTION = Bench(
    help="bana_cpu beside torch_native: prefill, cached prefix, decode; begins anew if interrupted",
    settings=lambda _: {"module": MODULE},
    measure=measure_attention,
)
