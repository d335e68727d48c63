"""One point of the slo benchmark: requests offered to a side at a rate, and what came of them.

Kept as plain numbers, so that a run that is taken up again finds them; what is unknown is absent.
"""

from __future__ import annotations

import msgspec

from bana.eval.bench.errors import BenchError
from bana.eval.bench.harness import Session
from bana.eval.bench.slo.settings import PromiseSettings
from bana.eval.bench.slo.sides import Served
from bana.eval.bench.trials import Values
from bana.eval.client.isolated import Isolated, TtftPoint, measure_isolated
from bana.eval.client.limits import assign_limits
from bana.eval.client.plan import ClientPlan, Timeouts
from bana.eval.client.run import run_load
from bana.eval.client.watch import Tally
from bana.eval.goodput import summarise
from bana.eval.live.spec import PAPER_LIMITS
from bana.eval.requests import DEFAULT_CLASS, Ending, Workload
from bana.eval.runs import tell_about
from bana.eval.summary import Dimension, Group, LoadPoint, Summary

TTFT_KEY = "ttft_s "
# The share of requests that may be left out of a p99 of those that were answered.
P99_SPARE = 0.01


class SessionWatch:
    """Passes on what is worth a line; a point's own line follows anyway."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def begin(self, label: str, total: int) -> None:
        pass

    def show(self, tally: Tally) -> None:
        pass

    def say(self, line: str) -> None:
        self._session.say(line)

    def end(self) -> None:
        pass


class PointSeen(msgspec.Struct, frozen=True):
    """What a point gave. The longest are the quartile of the longest prompts.

    A p99 is None where more than a hundredth had no first token, so that it is not known.
    """

    rate_rps: float
    offered: float
    met: float
    longest_offered: float
    longest_met: float
    missed_ttft: float
    missed_tpot: float
    unanswered: float
    lateness_p99_ms: float
    is_valid: float
    ttft_mean_s: float | None = None
    ttft_p99_s: float | None = None

    @property
    def attainment(self) -> float:
        return self.met / self.offered

    @property
    def longest_attainment(self) -> float:
        return self.longest_met / self.longest_offered

    @property
    def load_point(self) -> LoadPoint:
        """The same for a search of the max rate."""
        return LoadPoint(self.rate_rps, self.attainment, self.ttft_p99_s, bool(self.is_valid))


def take_point(
    session: Session,
    settings: PromiseSettings,
    served: Served,
    offered: Workload,
    isolated: Isolated,
) -> Values:
    """Offer it on flushed caches; once more where the client was late, and then marked if again."""
    workload = promise(offered, isolated)
    for _ in range(2):
        served.flush()
        run = run_load(workload, _plan_client(settings, served), SessionWatch(session))
        if run.is_interrupted:
            raise KeyboardInterrupt
        served.require_undisturbed()
        summary = summarise(run, tell_about(workload, served.side.name))
        if summary.validity.is_valid:
            break
        session.say(f"  proves nothing: {'; '.join(summary.validity.reasons)}")
    return list_values(summary)


def promise(offered: Workload, isolated: Isolated) -> Workload:
    """The same requests with the limits that everybody is promised."""
    return assign_limits(offered, {DEFAULT_CLASS: PAPER_LIMITS}, isolated)


def list_values(summary: Summary) -> Values:
    """What a summary says, as it is kept."""
    if not summary.overall.offered:
        raise BenchError("a point offered no request in its window")
    overall, longest = summary.overall, summary.quartiles[-1]
    ttft = overall.latencies.ttft_s
    values = {
        "rate_rps": summary.offered_rps,
        "offered": float(overall.offered),
        "met": float(overall.met),
        "longest_offered": float(longest.offered),
        "longest_met": float(longest.met),
        "missed_ttft": float(overall.missed.get(Dimension.TTFT, 0)),
        "missed_tpot": float(overall.missed.get(Dimension.TPOT, 0)),
        "unanswered": float(overall.offered - overall.endings.get(Ending.FINISHED, 0)),
        "lateness_p99_ms": 0.0 if summary.lateness_s is None else summary.lateness_s.p99 * 1e3,
        "is_valid": float(summary.validity.is_valid),
    }
    if ttft is not None:
        values["ttft_mean_s"] = ttft.mean
        if _count_without_token(overall) <= P99_SPARE * overall.offered:
            values["ttft_p99_s"] = ttft.p99
    return values


def read_point(values: Values) -> PointSeen:
    """The inverse of `list_values`."""
    return msgspec.convert(dict(values), type=PointSeen)


def _count_without_token(group: Group) -> int:
    seen = group.latencies.ttft_s
    return group.offered - (0 if seen is None else seen.count)


def _plan_client(settings: PromiseSettings, served: Served) -> ClientPlan:
    return ClientPlan(
        target=served.target,
        timeouts=Timeouts(drain_s=settings.drain_s),
        lateness_limit_s=settings.lateness_limit_ms / 1e3,
        probe_rps=None,
        sample_interval_s=None,
    )


def take_isolated(
    session: Session, settings: PromiseSettings, served: Served, offered: Workload
) -> Values:
    """How fast the idle server answers requests of these lengths, one at a time."""
    plan = _plan_client(settings, served)
    seen = measure_isolated(offered, plan, SessionWatch(session))
    values = {f"{TTFT_KEY}{point.prompt_tokens}": point.ttft_s for point in seen.points}
    tpot = {} if seen.tpot_s is None else {"tpot_s": seen.tpot_s}
    return {"requests": float(seen.requests), **tpot, **values}


def describe_isolated(isolated: Isolated) -> dict[str, object]:
    """What the promises are multiples of, in milliseconds."""
    tpot_s = isolated.tpot_s
    return {
        "ttft_ms": {str(p.prompt_tokens): round(p.ttft_s * 1e3, 1) for p in isolated.points},
        "tpot_ms": None if tpot_s is None else round(tpot_s * 1e3, 1),
    }


def read_isolated(values: Values) -> Isolated:
    """The inverse of `take_isolated`."""
    points = [
        TtftPoint(int(name.removeprefix(TTFT_KEY)), value)
        for name, value in values.items()
        if name.startswith(TTFT_KEY)
    ]
    return Isolated(
        points=tuple(sorted(points, key=lambda point: point.prompt_tokens)),
        tpot_s=values.get("tpot_s"),
        requests=int(values["requests"]),
    )
