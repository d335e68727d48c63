"""What is measured at an open side: requests at a rate, or a round of them as fast as they go."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from bana.eval.bench.closed import ClosedLoad, ClosedResult, run_closed
from bana.eval.bench.cluster_cache.settings import ClusterCacheSettings
from bana.eval.bench.cluster_cache.sides import Door
from bana.eval.bench.errors import BenchError
from bana.eval.bench.harness import Session
from bana.eval.bench.slo.points import SessionWatch
from bana.eval.bench.trials import Values
from bana.eval.client.plan import ClientPlan, Endpoint, Timeouts
from bana.eval.client.run import run_load
from bana.eval.goodput import summarise
from bana.eval.requests import Ending, Offered, Workload
from bana.eval.runs import tell_about
from bana.eval.summary import Summary

TTFT, BALANCE, CACHED, RATE = "ttft_mean_s", "max_over_mean", "cached_share", "requests_per_s"


def take_point(
    session: Session, settings: ClusterCacheSettings, door: Door, workload: Workload
) -> Values:
    """Offer it on its schedule; BenchError where somebody was not served."""
    plan = ClientPlan(
        target=door.target,
        timeouts=Timeouts(drain_s=settings.drain_s),
        lateness_limit_s=settings.lateness_limit_ms / 1e3,
        probe_rps=None,
        sample_interval_s=settings.sample_interval_s,
        # Whoever routes, the front door of the cluster knows what its instances do.
        sampled=door.served.front_door,
    )
    run = run_load(workload, plan, SessionWatch(session))
    if run.is_interrupted:
        raise KeyboardInterrupt
    summary = summarise(run, tell_about(workload, door.side.name))
    if not summary.validity.is_valid:
        session.say(f"  {door.side.name}: {'; '.join(summary.validity.reasons)}")
    return list_values(door.side.name, summary)


def list_values(side: str, summary: Summary) -> dict[str, float]:
    """What a summary says, as it is kept; BenchError where it does not say enough."""
    overall, balance = summary.overall, summary.balance
    ttft = overall.latencies.ttft_s
    finished = overall.endings.get(Ending.FINISHED, 0)
    if ttft is None or finished < overall.offered:
        raise BenchError(
            f"{side} answered {finished} of {overall.offered} requests; a mean TTFT needs all"
        )
    if balance is None:
        raise BenchError(f"{side}: the front door told nothing of its instances")
    return {
        TTFT: ttft.mean,
        "ttft_p99_s": ttft.p99,
        BALANCE: balance.max_over_mean,
        CACHED: summary.cached_share or 0.0,
        "shared_prefix_share": _read_share(summary),
        "offered": float(overall.offered),
        "offered_rps": summary.offered_rps,
        "lateness_p99_ms": 0.0 if summary.lateness_s is None else summary.lateness_s.p99 * 1e3,
        "is_valid": float(summary.validity.is_valid),
    }


def take_round(settings: ClusterCacheSettings, door: Door, requests: Sequence[Offered]) -> Values:
    """The same requests in their order, so many at a time, as fast as they are answered."""
    result = ask_all(settings, door, requests, settings.concurrency)
    return {RATE: len(requests) / result.wall_s}


def time_ttft_s(settings: ClusterCacheSettings, door: Door, requests: Sequence[Offered]) -> float:
    """The median time to the first token, one request at a time."""
    result = ask_all(settings, door, requests, 1)
    # Not the first byte: SGLang sends its headers before there is a token.
    return statistics.median(
        e.first_event_s - e.due_s for e in result.exchanges if e.first_event_s is not None
    )


def ask_all(
    settings: ClusterCacheSettings, door: Door, requests: Sequence[Offered], concurrency: int
) -> ClosedResult:
    """Answers to all, so many out at a time."""
    bodies = [encode_ask(request) for request in requests]
    load = ClosedLoad(Endpoint.GENERATE.path, bodies, concurrency, settings.round_timeout_s)
    return run_closed(door.target, load)


def encode_ask(offered: Offered) -> dict[str, object]:
    """The body of a greedy, streamed generation of exactly as many tokens as planned."""
    prompt = offered.prompt
    asked: dict[str, object] = (
        {"text": prompt.text} if prompt.token_ids is None else {"input_ids": list(prompt.token_ids)}
    )
    sampling = {"max_new_tokens": offered.output_tokens, "temperature": 0, "ignore_eos": True}
    return {**asked, "sampling_params": sampling, "stream": True}


def _read_share(summary: Summary) -> float:
    share = summary.workload.get("shared_prefix_share")
    return float(share) if isinstance(share, int | float) else 0.0
