"""Every benchmark by name."""

from __future__ import annotations

from collections.abc import Mapping

from bana.eval.bench.attention import ATTENTION
from bana.eval.bench.client import CLIENT
from bana.eval.bench.harness import Bench
from bana.eval.bench.overhead import OVERHEAD
from bana.eval.bench.router import ROUTER
from bana.eval.bench.scheduler import SCHEDULER
from bana.eval.bench.slo.bench import SLO
from bana.slo.errors import ConfigError, describe_unknown

BENCHES: Mapping[str, Bench] = {
    "attention": ATTENTION,
    "client": CLIENT,
    "overhead": OVERHEAD,
    "router": ROUTER,
    "scheduler": SCHEDULER,
    "slo": SLO,
}


def find_bench(name: str) -> Bench:
    """The benchmark of that name; ConfigError lists the known ones."""
    if name not in BENCHES:
        raise ConfigError(describe_unknown("benchmark", name, BENCHES))
    return BENCHES[name]
