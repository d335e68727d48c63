"""A workload from its settings and a seed.

settings ─▶ source ─▶ conversations ─▶ schedule ─▶ requests ─▶ facts, fingerprint
"""

from __future__ import annotations

from bana.eval.requests import Workload
from bana.eval.workload.content import digest_all, measure_content
from bana.eval.workload.facts import describe_workload
from bana.eval.workload.offering import offer_requests
from bana.eval.workload.schedule import plan_schedule
from bana.eval.workload.seeds import Seeds
from bana.eval.workload.sources import open_source
from bana.eval.workload.spec import WorkloadSpec
from bana.eval.workload.spec_reader import check_workload_spec
from bana.slo.errors import ConfigError

MAX_SEED = 2**63 - 1


def build_workload(spec: WorkloadSpec, seed: int) -> Workload:
    """The schedule for `spec`: equal settings, files and seed give equal bytes.

    ConfigError for settings that contradict each other, files that cannot be used, and workloads
    that would be empty or too big. O(prompt tokens) in time; in memory O(requests) plus, while
    sharing is measured, the tokens that no earlier prompt began with.
    """
    if not 0 <= seed <= MAX_SEED:
        raise ConfigError(f"seed {seed}: allowed are whole numbers from 0 to {MAX_SEED}")
    spec = check_workload_spec(spec)
    seeds = Seeds(seed)
    source = open_source(spec, seeds)
    schedule = plan_schedule(spec, source, seeds)
    offering = offer_requests(spec, schedule, source.form, seeds)
    requests, window_s = offering.requests, schedule.phases.window_s
    content = measure_content(requests)
    facts = {
        **describe_workload(spec, source, schedule, requests, content),
        **schedule.notes,
        **offering.notes,
    }
    fingerprint = digest_all(requests, window_s, content.digest)
    return Workload(requests, window_s, seed, fingerprint, facts)
