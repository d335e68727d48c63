"""A study as people read it: two tables and a sentence; and as data."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from bana.eval.report.numbers import NOTHING, format_duration, format_figure, format_share
from bana.eval.report.records import NumberTable
from bana.eval.sentence import tell_number, tell_rate, tell_share
from bana.eval.simulator.points import Measured
from bana.eval.simulator.spec import SceneSpec, list_segments
from bana.eval.simulator.study import Capacity, StudyResult

Figure = Callable[[Measured], float]


def tabulate_study(scene: SceneSpec, result: StudyResult) -> list[NumberTable]:
    """What each policy carries, and how all fare at one rate; tables without rows are left out."""
    tables = [_tabulate_capacity(scene, result), _tabulate_comparison(scene, result)]
    return [table for table in tables if table.rows]


def describe_study(scene: SceneSpec, result: StudyResult, note: str) -> Mapping[str, object]:
    """Everything that was measured, as plain data."""
    return {
        "scene": _describe_scene(scene),
        "service": note,
        "segments": [segment.label for segment in list_segments(scene)],
        "max_rates": _describe_capacities(result.max_rates),
        "p99_bounded": _describe_capacities(result.p99_bounded),
        "baseline": result.baseline,
        "is_interrupted": result.is_interrupted,
        "measured": [_describe(m) for m in result.measured],
        "compared": [{**_describe(m), "summary": m.summary} for m in result.compared],
    }


def _describe_scene(scene: SceneSpec) -> object:
    """The scene with the names of its files alone: where they lie is nobody's business."""
    trace = scene.workload.trace
    if trace is not None:
        trace = msgspec.structs.replace(trace, path=Path(trace.path).name)
        workload = msgspec.structs.replace(scene.workload, trace=trace)
        scene = msgspec.structs.replace(scene, workload=workload)
    return msgspec.to_builtins(scene)


def compose_study(scene: SceneSpec, result: StudyResult) -> str:
    """The answer in plain words."""
    begin = "Interrupted: only a part of the scene. " if result.is_interrupted else ""
    known = {n: c.mean_rps for n, c in result.max_rates.items() if c.mean_rps is not None}
    if not known:
        return begin + _compose_attainment(result)
    best = max(known, key=lambda name: known[name] or 0.0)
    target = tell_share(scene.grid.target_attainment)
    said = f"{begin}{best} carries most at {target} attainment: {tell_rate(known[best] or 0.0)}"
    base = None if result.baseline is None else known.get(result.baseline)
    if base is None or best == result.baseline:
        return f"{said}."
    ratio = tell_number((known[best] or 0.0) / base)
    return f"{said}, {ratio} times what {result.baseline} does ({tell_rate(base)})."


def _compose_attainment(result: StudyResult) -> str:
    shares = _average(result.compared, _attain)
    if not shares:
        return "No max rate was bracketed: offer lower and higher rates."
    best = max(shares, key=lambda name: shares[name])
    return f"{best} attains most, {tell_share(shares[best])}."


def _tabulate_capacity(scene: SceneSpec, result: StudyResult) -> NumberTable:
    rows = [_list_capacity(name, name, result) for name in result.max_rates]
    for system, best in find_tuned(scene, result).items():
        rows.append(_list_capacity(f"{system}, tuned ({best})", best, result))
    target = tell_share(scene.grid.target_attainment)
    limit = f"p99 TTFT <= {scene.grid.p99_limit_s:g} s"
    header = ("policy", "max rate", "segments", "to baseline", limit, "segments")
    return NumberTable(f"Max rate at {target}, requests/s", header, tuple(rows))


def find_tuned(scene: SceneSpec, result: StudyResult) -> dict[str, str]:
    """Of each system that was tried with several settings, the row that carries most."""
    found: dict[str, str] = {}
    for name, capacity in result.max_rates.items():
        system = scene.policies[name].tuned_as
        if not system or capacity.mean_rps is None:
            continue
        known = result.max_rates[found.get(system, name)].mean_rps
        if system not in found or capacity.mean_rps > (known or 0.0):
            found[system] = name
    return found


def _list_capacity(title: str, name: str, result: StudyResult) -> tuple[str, ...]:
    capacity, bounded = result.max_rates[name], result.p99_bounded[name]
    base = None if result.baseline is None else result.max_rates[result.baseline].mean_rps
    mean_rps = capacity.mean_rps
    return (
        title,
        _format_rps(mean_rps),
        _format_range(capacity),
        NOTHING if base is None or mean_rps is None else format_figure(mean_rps / base),
        _format_rps(bounded.mean_rps),
        _format_range(bounded),
    )


def _tabulate_comparison(scene: SceneSpec, result: StudyResult) -> NumberTable:
    rates = sorted({m.summary.offered_rps for m in result.compared})
    rows = []
    for name in scene.policies:
        runs = [m for m in result.compared if m.point.policy == name]
        if runs:
            rows.append((name, *_list_figures(runs, _mean_misses(result, result.baseline))))
    title = "At " + ", ".join(map(tell_rate, rates))
    if result.baseline is not None:
        title += f", what {result.baseline} carries"
    header = (
        "policy", "attainment", "misses to baseline", "shortest quarter", "longest quarter",
        "TTFT mean", "TTFT p99", "TPOT p99", "cached",
    )  # fmt: skip
    return NumberTable(title, header, tuple(rows))


def _mean_misses(result: StudyResult, policy: str | None) -> float | None:
    return _mean([1 - _attain(m) for m in result.compared if m.point.policy == policy])


def _attain(measured: Measured) -> float:
    return measured.summary.overall.attainment.value


def _list_figures(runs: Sequence[Measured], base_misses: float | None) -> tuple[str, ...]:
    attainment = _mean([_attain(m) for m in runs]) or 0.0
    summaries = [m.summary for m in runs]
    ttft = [s.overall.latencies.ttft_s for s in summaries]
    tpot = [s.overall.latencies.tpot_s for s in summaries]
    return (
        format_share(attainment),
        format_figure((1 - attainment) / base_misses) if base_misses else NOTHING,
        format_share(_mean([s.quartiles[0].attainment.value for s in summaries])),
        format_share(_mean([s.quartiles[-1].attainment.value for s in summaries])),
        format_duration(_mean([t.mean for t in ttft if t is not None])),
        format_duration(_mean([t.p99 for t in ttft if t is not None])),
        format_duration(_mean([t.p99 for t in tpot if t is not None])),
        format_share(_mean([s.cached_share for s in summaries if s.cached_share is not None])),
    )


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def _average(runs: Sequence[Measured], figure: Figure) -> dict[str, float]:
    names = dict.fromkeys(m.point.policy for m in runs)
    return {n: statistics.fmean(figure(m) for m in runs if m.point.policy == n) for n in names}


def _format_rps(rps: float | None) -> str:
    return NOTHING if rps is None else format_figure(rps)


def _format_range(capacity: Capacity) -> str:
    rates = [found.rps for found in capacity.by_segment.values() if found.rps is not None]
    if len(rates) < len(capacity.by_segment):
        return f"{len(rates)} of {len(capacity.by_segment)} bracketed"
    return f"{format_figure(min(rates))}–{format_figure(max(rates))}"


def _describe_capacities(capacities: Mapping[str, Capacity]) -> dict[str, object]:
    return {
        name: {"mean_rps": capacity.mean_rps, "by_segment": capacity.by_segment}
        for name, capacity in capacities.items()
    }


def _describe(measured: Measured) -> dict[str, object]:
    overall = measured.summary.overall
    ttft = overall.latencies.ttft_s
    return {
        "policy": measured.point.policy,
        "segment": measured.point.segment.label,
        "offered_rps": measured.summary.offered_rps,
        "requests": overall.offered,
        "attainment": overall.attainment.value,
        "missed": overall.missed,
        "ttft_mean_s": None if ttft is None else ttft.mean,
        "ttft_p99_s": None if ttft is None else ttft.p99,
        "quartile_attainments": [q.attainment.value for q in measured.summary.quartiles],
        "event_hash": measured.event_hash,
        "events": measured.events,
    }
