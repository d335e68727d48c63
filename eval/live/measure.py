"""One visit of one server: what it offers is built, judged against the idle server, and kept."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Mapping

import msgspec

from bana.eval.client.isolated import Isolated, measure_isolated
from bana.eval.client.limits import assign_limits
from bana.eval.client.run import run_load
from bana.eval.client.self_test import SelfTest, run_self_test
from bana.eval.client.watch import Watch
from bana.eval.goodput import summarise
from bana.eval.live.servers import Server
from bana.eval.live.spec import LiveSpec, set_rate
from bana.eval.report.records import Origin, StoredRun
from bana.eval.requests import Workload
from bana.eval.runs import RunRecord, tell_about
from bana.eval.workload.build import build_workload


class Point(msgspec.Struct, frozen=True):
    """One run that shall be made. `rate_rps` None is the rate of the workload itself."""

    side: str
    seed: int
    rate_rps: float | None = None

    @property
    def label(self) -> str:
        """What tells it from other runs of its side."""
        rate = "" if self.rate_rps is None else f"-{self.rate_rps:.4g}rps"
        return f"seed{self.seed}{rate}"

    @property
    def folder_name(self) -> str:
        """What tells it from all other runs."""
        return f"{self.side}-{self.label}"


class Idle(msgspec.Struct, frozen=True):
    """What was learnt before the load: the client's own cost, and the idle server's latency."""

    self_test: SelfTest
    isolated: Isolated | None = None


def build_point(spec: LiveSpec, point: Point) -> Workload:
    """What a point offers, the same for every side.

    Each rate has prompts of its own: those of another rate may still be in the server's caches.
    """
    if point.rate_rps is None:
        return build_workload(spec.workload, point.seed)
    rated = set_rate(spec.workload, point.rate_rps)
    return build_workload(rated, mix_seed(point.seed, point.rate_rps))


def mix_seed(seed: int, rate_rps: float) -> int:
    """The seed of one rate of a grid; 53 bits, so that every JSON reader keeps it exactly."""
    digest = hashlib.sha256(f"{seed} {rate_rps!r}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 11


def learn_idle(spec: LiveSpec, workload: Workload, server: Server, watch: Watch) -> Idle:
    """Test the client by itself, and where limits are multiples measure the idle server."""
    plan = spec.client.plan(server.target, "isolated latency")
    self_test = run_self_test(workload, plan, watch)
    if not self_test.is_fit:
        watch.say(
            f"self-test: against a server that costs nothing this client is "
            f"{self_test.lateness_p99_s * 1e3:.1f} ms late (p99) and loses {self_test.lost} of "
            f"{self_test.requests} requests; expect an invalid run"
        )
    if not spec.needs_isolated:
        return Idle(self_test)
    return Idle(self_test, measure_isolated(workload, plan, watch))


def measure_point(
    spec: LiveSpec, point: Point, offered: Workload, server: Server, idle: Idle, watch: Watch
) -> StoredRun:
    """Offer what belongs to `point` to `server`."""
    cleared = server.clear_caches()
    workload = assign_limits(offered, spec.class_limits, idle.isolated)
    started_at = datetime.datetime.now(datetime.UTC)
    run = run_load(workload, spec.client.plan(server.target, point.folder_name), watch)
    about = tell_about(workload, server.target.url)
    settings = {**describe_settings(spec, idle), "caches_before": cleared}
    origin = Origin(point.label, point.side, started_at, settings)
    return StoredRun(RunRecord(about, run), summarise(run, about), origin)


def describe_settings(spec: LiveSpec, idle: Idle) -> Mapping[str, object]:
    """What a reader must know of how it was measured; plain data."""
    described: dict[str, object] = {
        "limits": {
            name: {key: value for key, value in msgspec.to_builtins(limits).items() if value}
            for name, limits in spec.class_limits.items()
        },
        "client": msgspec.to_builtins(spec.client),
        "self_test_lateness_p99_ms": round(idle.self_test.lateness_p99_s * 1e3, 3),
        "self_test_ttft_p99_ms": round(idle.self_test.ttft_p99_s * 1e3, 3),
    }
    if idle.isolated is not None:
        described["isolated_ttft_ms"] = {
            str(point.prompt_tokens): round(point.ttft_s * 1e3, 3) for point in idle.isolated.points
        }
        tpot_s = idle.isolated.tpot_s
        described["isolated_tpot_ms"] = None if tpot_s is None else round(tpot_s * 1e3, 3)
    return described
