"""Synthetic load runs: Poisson arrivals of two classes at a server that saturates."""

import datetime
import heapq
import random
from collections.abc import Callable

import msgspec
import pytest

from bana.eval.goodput import summarise
from bana.eval.report.records import Origin, ReportInput, StoredRun
from bana.eval.requests import (
    Ending,
    Limits,
    LoadRun,
    Observed,
    Phase,
    Probe,
    ServerSample,
    Validity,
)
from bana.eval.runs import RunAbout, RunRecord
from bana.eval.summary import LoadPoint, MaxRate

STARTED_AT = datetime.datetime(2026, 3, 14, 9, 26, 53, tzinfo=datetime.UTC)
WARMUP_S = 10.0
COOLDOWN_S = 10.0
LIMITS = {"chat": Limits(ttft_s=0.5, tpot_s=0.05), "batch": Limits(ttft_s=4.0, e2e_s=30.0)}


class Spec(msgspec.Struct, frozen=True):
    """A run to make up."""

    rate_rps: float = 8.0
    window_s: float = 120.0
    seed: int = 1
    tokens: int = 60
    prefill_tokens_per_s: float = 9000.0


class Server:
    """One prefill at a time, decoding that slows down with the number of streams."""

    def __init__(self, rng: random.Random, prefill_tokens_per_s: float) -> None:
        self.rng = rng
        self.prefill_tokens_per_s = prefill_tokens_per_s
        self.free_s = 0.0
        self.ends: list[float] = []

    def answer(self, due_s: float, prompt_tokens: int, tokens: int) -> dict[str, object]:
        sent_s = due_s + self.rng.expovariate(4000.0)
        while self.ends and self.ends[0] <= sent_s:
            heapq.heappop(self.ends)
        start_s = max(self.free_s, sent_s)
        if start_s - sent_s > 5.0:
            return refuse(sent_s)
        first_s = start_s + prompt_tokens / self.prefill_tokens_per_s
        self.free_s = first_s
        step_s = 0.018 * (1 + len(self.ends) / 30)
        times = [first_s]
        while len(times) < tokens:
            stall_s = 0.25 if self.rng.random() < 0.004 else 0.0
            times.append(times[-1] + step_s * self.rng.lognormvariate(0.0, 0.25) + stall_s)
        heapq.heappush(self.ends, times[-1])
        return self.finish(sent_s, tuple(times))

    def finish(self, sent_s: float, times: tuple[float, ...]) -> dict[str, object]:
        cut = self.rng.random() < 0.006
        kept = times[: max(1, len(times) // 2)] if cut else times
        return {
            "ending": Ending.CUT if cut else Ending.FINISHED,
            "sent_s": sent_s,
            "first_s": kept[0],
            "last_s": kept[-1],
            "end_s": kept[-1] + 0.002,
            "output_tokens": len(kept),
            "event_times_s": kept,
            "event_tokens": (1,) * len(kept),
            "status": 200,
            "error": "the stream ended without [DONE]" if cut else None,
            "instance": f"instance-{len(kept) % 2}",
            "cached_tokens": 64,
        }


def refuse(sent_s: float) -> dict[str, object]:
    return {
        "ending": Ending.REJECTED,
        "sent_s": sent_s,
        "end_s": sent_s + 0.004,
        "status": 429,
        "code": "rate_limit_exceeded",
        "error": "the queue is full; retry after 2 s",
    }


def make_observed(spec: Spec, rng: random.Random) -> list[Observed]:
    server, due_s, observed = Server(rng, spec.prefill_tokens_per_s), 0.0, []
    while (due_s := due_s + rng.expovariate(spec.rate_rps)) < WARMUP_S + spec.window_s + COOLDOWN_S:
        name = "chat" if rng.random() < 0.7 else "batch"
        prompt_tokens = min(int(rng.lognormvariate(6.2 if name == "chat" else 7.2, 0.7)), 8000)
        tokens = max(1, int(rng.gauss(spec.tokens, spec.tokens / 4)))
        observed.append(
            Observed(
                index=len(observed),
                due_s=due_s,
                slo_class=name,
                limits=LIMITS[name],
                phase=phase_at(due_s, spec),
                prompt_tokens=prompt_tokens,
                asked_tokens=tokens,
                **server.answer(due_s, prompt_tokens, tokens),
            )
        )
    return observed


def phase_at(due_s: float, spec: Spec) -> Phase:
    if due_s < WARMUP_S:
        return Phase.WARMUP
    return Phase.WINDOW if due_s < WARMUP_S + spec.window_s else Phase.COOLDOWN


def make_probes(observed: list[Observed], until_s: float) -> list[Probe]:
    waits = [(o.due_s, o.first_s - o.due_s) for o in observed if o.first_s is not None]
    probes, due_s = [], 1.0
    while due_s < until_s:
        near = min(waits, key=lambda w: abs(w[0] - due_s))[1]
        lost = int(due_s) == 61
        first_s = None if lost else due_s + 0.02 + near / 3
        ending = Ending.FAILED if lost else Ending.FINISHED
        probes.append(Probe(due_s, due_s, first_s, ending, "timeout" if lost else None))
        due_s += 5.0
    return probes


def make_samples(observed: list[Observed], until_s: float) -> list[ServerSample]:
    samples = []
    # Some hundred samples show a server as well as one a second would.
    for second in range(0, int(until_s), 1 + int(until_s) // 150):
        live = [o for o in observed if o.due_s <= second < (o.end_s or 0.0)]
        running = [o for o in live if o.first_s is not None and o.first_s <= second]
        waiting = len(live) - len(running)
        samples.append(
            ServerSample(
                at_s=float(second),
                running={
                    "instance-0": float(len(running) // 2),
                    "instance-1": float(len(running) - len(running) // 2),
                },
                waiting={"instance-0": float(waiting), "instance-1": 0.0},
            )
        )
    return samples


def build_run(spec: Spec, origin: Origin | None = None) -> StoredRun:
    rng = random.Random(spec.seed)
    observed = make_observed(spec, rng)
    until_s = WARMUP_S + spec.window_s + COOLDOWN_S
    run = LoadRun(
        observed=tuple(observed),
        probes=tuple(make_probes(observed, until_s)),
        samples=tuple(make_samples(observed, until_s)),
        window_s=spec.window_s,
        duration_s=max(o.end_s or 0.0 for o in observed),
        validity=Validity(True),
    )
    facts = {"source": "synthetic", "arrivals": "poisson", "rate_rps": spec.rate_rps,
             "classes": {"chat": 0.7, "batch": 0.3}, "mean_output_tokens": spec.tokens}  # fmt: skip
    about = RunAbout("http://127.0.0.1:30000/v1", spec.seed, f"f{spec.rate_rps:g}", facts, WARMUP_S)
    settings = {"model": "smollm2", "probe_every_s": 5.0, "max_concurrency": None}
    return StoredRun(
        RunRecord(about, run),
        summarise(run, about),
        origin or Origin(started_at=STARTED_AT, settings=settings),
    )


MakeRun = Callable[..., StoredRun]


@pytest.fixture(scope="session")
def make_run() -> MakeRun:
    """Builds a run from a rate, a window, a seed and a mean answer length; equal ones once."""
    known: dict[Spec, StoredRun] = {}

    def make(**wanted: float) -> StoredRun:
        spec = Spec(**wanted)
        if spec not in known:
            known[spec] = build_run(spec)
        return known[spec]

    return make


@pytest.fixture(scope="session")
def run_at_8(make_run: MakeRun) -> StoredRun:
    return make_run(rate_rps=8.0)


@pytest.fixture(scope="session")
def grid(make_run: MakeRun) -> ReportInput:
    """Five rates up to saturation, and the rate between them at which 90 % is kept."""
    runs = tuple(make_run(rate_rps=rate, window_s=60.0) for rate in (2.0, 4.0, 6.0, 8.0, 11.0))
    points = tuple(
        LoadPoint(s.summary.offered_rps, s.summary.overall.attainment.value, None) for s in runs
    )
    rate = MaxRate(5.7, 0.9, points, "kept 95 % at 4/s and only 81 % at 6/s")
    return ReportInput(runs=runs, max_rates={"": rate})
