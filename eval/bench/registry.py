"""Every benchmark by name."""

from __future__ import annotations

from collections.abc import Mapping

from bana.eval.bench.agreement.bench import AGREEMENT
from bana.eval.bench.attention import ATTENTION
from bana.eval.bench.client import CLIENT
from bana.eval.bench.cluster_cache.bench import CLUSTER_CACHE
from bana.eval.bench.harness import Bench
from bana.eval.bench.kvstream.bench import KVSTREAM
from bana.eval.bench.overhead import OVERHEAD
from bana.eval.bench.restore.bench import RESTORE
from bana.eval.bench.router import ROUTER
from bana.eval.bench.scheduler import SCHEDULER
from bana.eval.bench.slo.bench import SLO
from bana.eval.bench.store.bench import STORE
from bana.slo.errors import ConfigError, describe_unknown

BENCHES: Mapping[str, Bench] = {
    "agreement": AGREEMENT,
    "attention": ATTENTION,
    "client": CLIENT,
    "cluster_cache": CLUSTER_CACHE,
    "kvstream": KVSTREAM,
    "overhead": OVERHEAD,
    "restore": RESTORE,
    "router": ROUTER,
    "scheduler": SCHEDULER,
    "slo": SLO,
    "store": STORE,
}


def find_bench(name: str) -> Bench:
    """The benchmark of that name; ConfigError lists the known ones."""
    if name not in BENCHES:
        raise ConfigError(describe_unknown("benchmark", name, BENCHES))
    return BENCHES[name]
