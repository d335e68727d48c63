"""Two sides that were offered the same: B over A, pair by pair.

    pair = one run of A and one of B, same seed, same workload
    draw = the same segments of both runs ──▶ B's figure over A's ──▶ interval ──▶ verdict

One pair tells two runs apart, several tell two servers apart: only they hold what changes from
start to start. Source: Efron and Tibshirani 1993; Davison and Hinkley 1997, section 3.8 (two
levels).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from bana.eval.metrics import METRICS, Metric
from bana.eval.resampling import SEED, WHOLE, Floats, divide, draw_weights, spread_draws
from bana.eval.runs import RunAbout, RunRecord, select_window
from bana.eval.segments import SegmentedRun, cut_run
from bana.eval.summary import Comparison, Spread, Verdict
from bana.slo.errors import ConfigError
from bana.slo.figures import Better


class Undecided(msgspec.Struct, frozen=True):
    """A metric without a ratio, and why."""

    metric: str
    reason: str


class ComparedRuns(msgspec.Struct, frozen=True):
    """B over A in every metric that has a ratio. `notes`: what a reader of them must know."""

    pairs: int
    comparisons: tuple[Comparison, ...]
    undecided: tuple[Undecided, ...]
    notes: tuple[str, ...]


class RunPair(msgspec.Struct, frozen=True):
    """One run of each side."""

    a: RunRecord
    b: RunRecord


class _CutPair(msgspec.Struct, frozen=True):
    a: SegmentedRun
    b: SegmentedRun


class _Ratio(msgspec.Struct, frozen=True):
    """The ratio of one pair, as it was seen and in each draw."""

    value: float
    drawn: Floats


def compare_runs(
    a: Sequence[RunRecord], b: Sequence[RunRecord], metrics: Sequence[Metric] = METRICS
) -> ComparedRuns:
    """Every metric of B over A; ConfigError where the two were not offered the same.

    One pair: its ratio, the same segments drawn from both runs. Several: the median ratio, pairs
    drawn first and then segments within them, which is wide rather than narrow. Better or worse
    only where the interval leaves out 1.
    """
    pairs = pair_runs(a, b)
    cut = [_CutPair(cut_run(pair.a), cut_run(pair.b)) for pair in pairs]
    found = [_compare_metric(metric, cut) for metric in metrics]
    return ComparedRuns(
        pairs=len(pairs),
        comparisons=tuple(f for f in found if isinstance(f, Comparison)),
        undecided=tuple(f for f in found if isinstance(f, Undecided)),
        notes=_note_unanswered(cut),
    )


def pair_runs(a: Sequence[RunRecord], b: Sequence[RunRecord]) -> list[RunPair]:
    """The runs of both sides by seed, repeated seeds in their order."""
    if not a or not b:
        raise ConfigError(f"{len(a)} and {len(b)} runs cannot be paired: give both sides a run")
    for record in (*a, *b):
        _check_proof(record)
    ordered_a, ordered_b = (sorted(side, key=lambda r: r.about.seed) for side in (a, b))
    seeds_a, seeds_b = ([r.about.seed for r in side] for side in (ordered_a, ordered_b))
    if seeds_a != seeds_b:
        raise ConfigError(
            f"runs of different seeds cannot be compared: {_tell_seeds(a)} and {_tell_seeds(b)} "
            f"({_tell_workloads(a[0].about, b[0].about)}); repeat one side with the other's seeds"
        )
    pairs = [RunPair(*both) for both in zip(ordered_a, ordered_b, strict=True)]
    for pair in pairs:
        _check_same(pair)
    return pairs


def decide_verdict(ratio: Spread, better: Better) -> Verdict:
    """What the interval of B over A shows."""
    if ratio.low <= 1 <= ratio.high:
        return Verdict.NO_DIFFERENCE
    is_better = (ratio.low > 1) == (better is Better.HIGHER)
    return Verdict.BETTER if is_better else Verdict.WORSE


def compose_comparison(compared: ComparedRuns) -> str:
    """The comparison in one plain sentence."""
    said = [_tell_verdict(compared.comparisons, verdict) for verdict in Verdict]
    said += [f"no ratio of {u.metric}: {u.reason}" for u in compared.undecided]
    pairs = "1 pair" if compared.pairs == 1 else f"{compared.pairs} pairs"
    return f"B over A ({pairs}): " + "; ".join([s for s in said if s] + [*compared.notes]) + "."


def _compare_metric(metric: Metric, cut: Sequence[_CutPair]) -> Comparison | Undecided:
    ratios = []
    for place, pair in enumerate(cut):
        ratio = _measure_ratio(metric, pair, SEED + place)
        if ratio is None:
            return Undecided(metric.name, _tell_undefined(metric, pair))
        ratios.append(ratio)
    spread = _join_ratios(ratios)
    if spread is None:
        return Undecided(metric.name, "too few requests have it: some segments hold none")
    return Comparison(metric.name, spread, len(cut), decide_verdict(spread, metric.better))


def _measure_ratio(metric: Metric, pair: _CutPair, seed: int) -> _Ratio | None:
    above, below = metric.measure(pair.b, WHOLE), metric.measure(pair.a, WHOLE)
    value = float(divide(above, below)[0])
    if not np.isfinite(value):
        return None
    weights = draw_weights(seed)
    drawn = divide(metric.measure(pair.b, weights), metric.measure(pair.a, weights))
    return _Ratio(value, drawn)


def _join_ratios(ratios: Sequence[_Ratio]) -> Spread | None:
    value = float(np.median([ratio.value for ratio in ratios]))
    drawn = np.array([ratio.drawn for ratio in ratios])
    if len(ratios) == 1:
        return spread_draws(value, drawn[0])
    random = np.random.default_rng(SEED)
    picked = random.integers(len(ratios), size=(drawn.shape[1], len(ratios)))
    draws = random.integers(drawn.shape[1], size=picked.shape)
    return spread_draws(value, np.median(drawn[picked, draws], axis=1))


def _check_proof(record: RunRecord) -> None:
    run = record.run
    reasons = [*run.validity.reasons] if not run.validity.is_valid else []
    if run.is_interrupted:
        reasons.append("interrupted")
    if reasons or not run.validity.is_valid:
        raise ConfigError(
            f"the run of {record.about.target!r} with seed {record.about.seed} proves nothing "
            f"({'; '.join(reasons) or 'not valid'}): run it again"
        )


def _check_same(pair: RunPair) -> None:
    about_a, about_b = pair.a.about, pair.b.about
    if about_a.fingerprint != about_b.fingerprint:
        raise ConfigError(
            f"runs with seed {about_a.seed} were not offered the same "
            f"({_tell_workloads(about_a, about_b)}); compare runs of one workload"
        )
    promised_a, promised_b = (
        [(o.index, o.due_s, o.slo_class, o.limits) for o in select_window(r.run)]
        for r in (pair.a, pair.b)
    )
    if promised_a != promised_b:
        raise ConfigError(
            f"runs with seed {about_a.seed} name one workload, {about_a.fingerprint}, but their "
            "requests or limits differ; one of their files was changed, run it again"
        )


def _tell_workloads(a: RunAbout, b: RunAbout) -> str:
    names = sorted({*a.workload, *b.workload})
    facts = [_tell_fact(name, a.workload, b.workload) for name in names]
    differing = ", ".join(fact for fact in facts if fact) or "no fact, only the requests"
    return f"fingerprints {a.fingerprint} and {b.fingerprint}; what differs: {differing}"


def _tell_fact(name: str, a: Mapping[str, object], b: Mapping[str, object]) -> str:
    value_a, value_b = a.get(name, "not told"), b.get(name, "not told")
    return "" if value_a == value_b else f"{name} {value_a} and {value_b}"


def _tell_seeds(side: Sequence[RunRecord]) -> str:
    return "seed " + ", ".join(str(seed) for seed in sorted(r.about.seed for r in side))


def _tell_undefined(metric: Metric, pair: _CutPair) -> str:
    values = [float(metric.measure(run, WHOLE)[0]) for run in (pair.a, pair.b)]
    said = ["no value" if np.isnan(value) else f"{value:.3g}" for value in values]
    return f"A has {said[0]}, B {said[1]}"


def _note_unanswered(cut: Sequence[_CutPair]) -> tuple[str, ...]:
    """Latencies are those of answers: a side that answers fewer may look faster for it."""
    silent_a, silent_b = (
        sum(int(run.offered.sum()) - run.ttft_s.values.size for run in side)
        for side in ([pair.a for pair in cut], [pair.b for pair in cut])
    )
    if silent_a == silent_b:
        return ()
    return (f"A left {silent_a} requests without a token, B {silent_b}: TTFT is of the others",)


def _tell_verdict(comparisons: Sequence[Comparison], verdict: Verdict) -> str:
    found = [
        f"{c.metric} {c.ratio.value:.3g}x ({c.ratio.low:.3g}-{c.ratio.high:.3g})"
        for c in comparisons
        if c.verdict is verdict
    ]
    return f"{verdict.value} in {', '.join(found)}" if found else ""
