"""How much of a layer-wise load a forward pass hides, by page size.

    layer_overlap = (load + forward - both) / min(load, forward)

Loader, pool and counter are the engine's, in a process apart. Part of `bana eval bench store`.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import msgspec

from bana.eval.bench.apart import run_apart
from bana.eval.bench.errors import BenchError
from bana.eval.bench.harness import Session
from bana.eval.bench.pairs import figure_level
from bana.eval.bench.samples import join_samples, split_samples
from bana.eval.bench.trials import Values
from bana.slo.figures import Aim, Figure

MODULE = "sglang_bana.engine.bench_layer_overlap"
OVERLAP_AIM = Aim(0.7)
APART, TOGETHER = "two cores", "one core"
# The points of MODULE, by what their figures are called.
NAMES = {
    f"equal/{APART}": "layer_overlap",
    f"load is half/{APART}": "layer_overlap_load_is_half",
    f"equal/{TOGETHER}": "one_core_layer_overlap",
    f"load is half/{TOGETHER}": "one_core_layer_overlap_load_is_half",
}
AIMED = f"equal/{APART}"


class OverlapSettings(msgspec.Struct, frozen=True):
    """`rounds` of each case; `pages` a load, 0 for as many as each shape of MODULE has.

    Load and forward pass count as equally long up to a factor of `most_uneven`.
    """

    rounds: int
    pages: int = 0
    most_uneven: float = 1.5


class OverlapSamples(msgspec.Struct, frozen=True):
    """What MODULE says of one case: milliseconds of each run, round by round."""

    load_ms: list[float]
    forward_ms: list[float]
    both_ms: list[float]

    def overlaps(self) -> list[float]:
        """Of each round, how much of the shorter run was hidden behind the other one."""
        rounds = zip(self.load_ms, self.forward_ms, self.both_ms, strict=True)
        return [(load + forward - both) / min(load, forward) for load, forward, both in rounds]


def measure_overlap(session: Session, settings: OverlapSettings) -> dict[str, Figure]:
    """The figures of this part of the benchmark; `session.notes` name what was not measured."""
    values = session.run_trial("layer overlap", lambda: _time_overlaps(session, settings))
    samples = split_samples(values, OverlapSamples)
    if not any(APART in case for case in samples):
        reason = "not measured: this process may run on one core only; give it two"
        session.say(f"layer_overlap: {reason}")
        session.notes["layer_overlap"] = reason
    return judge_overlaps(samples, session.request.seed)


def _time_overlaps(session: Session, settings: OverlapSettings) -> Values:
    arguments = ["--rounds", str(settings.rounds), "--pages", str(settings.pages)]
    output = run_apart(session, MODULE, arguments)
    samples = msgspec.json.decode(output, type=dict[str, OverlapSamples])
    require_comparable(samples, settings.most_uneven)
    return join_samples(samples)


def require_comparable(samples: Mapping[str, OverlapSamples], most_uneven: float) -> None:
    """BenchError where the aimed case's load and forward pass did not take about as long."""
    for case, taken in samples.items():
        load, forward = statistics.median(taken.load_ms), statistics.median(taken.forward_ms)
        uneven = max(load, forward) / min(load, forward)
        if case.endswith(AIMED) and uneven > most_uneven:
            raise BenchError(
                f"{case}: loading took {load:.1f} ms, computing {forward:.1f} ms, allowed: a "
                f"factor of {most_uneven:g}; the machine was disturbed: leave it alone and repeat"
            )


def judge_overlaps(samples: Mapping[str, OverlapSamples], seed: int) -> dict[str, Figure]:
    """The overlap of each case; what loading and computing took, for the aimed one."""
    figures = {}
    for case, taken in samples.items():
        page_bytes, _, point = case.partition("/")
        shape = f"[{page_bytes}b]"
        aim = OVERLAP_AIM if point == AIMED else None
        figures[f"{NAMES[point]}{shape}"] = figure_level(taken.overlaps(), seed, "ratio", aim)
        if point == AIMED:
            figures[f"layer_load_ms{shape}"] = _level(taken.load_ms, seed)
            figures[f"layer_forward_ms{shape}"] = _level(taken.forward_ms, seed)
    return figures


def _level(times_ms: Sequence[float], seed: int) -> Figure:
    return figure_level(times_ms, seed, "ms")


def describe_overlap(settings: OverlapSettings) -> Mapping[str, object]:
    """The settings as they stand in the report."""
    described: dict[str, object] = msgspec.to_builtins(settings)
    return described | {
        "module": MODULE,
        "load": "pages of SmolLM2-135M (128 of 368,640 bytes) and of a model of 8 billion "
        "parameters (64 of 2 MiB), out of an arena in shared memory into SGLang's pool on the CPU, "
        "by the linker's loading thread; all pages of a step at once",
        "forward": "matmuls of 16 x 256 by 256 x 256 in float32, one torch thread, as many a layer "
        "as make it last as long as the load, or twice; each layer is awaited in the pool",
        "cores": "the loading thread on the first one, the forward pass on the last; or both there",
    }
