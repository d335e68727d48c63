"""What the store adds to a scheduling pass with a long queue: with it, less the same without it.

nobody held                 all have their pages, and one is tried
100 held                    their pages are on the way
100 held, a page for each   and one of each has come since the last pass

SGLang's scheduler runs in a process apart, without a server. Part of `bana eval bench store`.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from bana.eval.bench.apart import run_apart
from bana.eval.bench.harness import Session
from bana.eval.bench.pairs import figure_difference, figure_level
from bana.eval.bench.samples import join_samples, pair_samples
from bana.eval.bench.trials import Values
from bana.slo.figures import Aim, Better, Figure

MODULE = "sglang_bana.engine.bench_store_pass"
PASS_AIM = Aim(1.0, Better.LOWER)
METRIC = "pass_ms"


class PassSettings(msgspec.Struct, frozen=True):
    """`requests` wait while `pairs` of passes are timed in every case of MODULE."""

    pairs: int
    requests: int = 1_000


class PassSamples(msgspec.Struct, frozen=True):
    """What MODULE says of one case: milliseconds of each pass, pair by pair."""

    store_ms: list[float]
    plain_ms: list[float]


def measure_passes(session: Session, settings: PassSettings) -> dict[str, Figure]:
    """The figures of this part of the benchmark."""
    values = session.run_trial("passes", lambda: _time_passes(session, settings))
    return judge_passes(values, settings.requests, session.request.seed)


def _time_passes(session: Session, settings: PassSettings) -> Values:
    arguments = ["--seed", str(session.request.seed), "--requests", str(settings.requests)]
    arguments += ["--pairs", str(settings.pairs)]
    output = run_apart(session, MODULE, arguments)
    return join_samples(msgspec.json.decode(output, type=dict[str, PassSamples]))


def judge_passes(values: Values, requests: int, seed: int) -> dict[str, Figure]:
    """What the store adds in each case, and what the pass takes without it."""
    figures = {}
    for case, pairs in pair_samples(values, PassSamples, METRIC).items():
        added = figure_difference(pairs, METRIC, seed, "ms", PASS_AIM)
        without = [pair.second[METRIC] for pair in pairs]
        figures[f"pass_overhead_ms_{requests}_queued[{case}]"] = added
        figures[f"pass_without_store_ms_{requests}_queued[{case}]"] = figure_level(
            without, seed, "ms"
        )
    return figures


def describe_passes(settings: PassSettings) -> Mapping[str, object]:
    """The settings as they stand in the report."""
    described: dict[str, object] = msgspec.to_builtins(settings)
    return described | {
        "module": MODULE,
        "order": "budget, governor tpot",
        "pass": "process_input_requests and get_next_batch_to_run of bana's scheduler over "
        "SGLang's own, with its tree, pool and queue; the pool is full, so that the first request "
        "is matched and not admitted",
        "store": "in the same process: pages arrive between passes; loading and saving cost "
        "nothing here, nor does asking, which is done once a request",
        "without": "the same queue, of which the pass sees the held requests too",
    }
