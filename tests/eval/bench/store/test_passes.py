"""What the samples of passes become."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from bana.eval.bench.harness import BenchRequest, Interruption, Session
from bana.eval.bench.samples import join_samples, pair_samples
from bana.eval.bench.store import passes
from bana.eval.bench.store.passes import (
    PassSamples,
    PassSettings,
    describe_passes,
    judge_passes,
    measure_passes,
)
from bana.eval.bench.trials import open_trials

SAMPLES = {
    "nobody held": PassSamples([1.2, 1.4, 1.3], [1.0, 1.0, 1.0]),
    "100 held, a page for each": PassSamples([3.0, 3.0, 3.0], [1.0, 1.5, 1.0]),
}


def test_samples_survive_an_interruption() -> None:
    cases = pair_samples(join_samples(SAMPLES), PassSamples, "pass_ms")
    assert list(cases) == list(SAMPLES)
    seen = [(p.first["pass_ms"], p.second["pass_ms"]) for p in cases["100 held, a page for each"]]
    assert seen == [(3.0, 1.0), (3.0, 1.5), (3.0, 1.0)]


def test_what_the_store_adds_is_judged_by_the_upper_bound() -> None:
    figures = judge_passes(join_samples(SAMPLES), 1000, seed=0)
    added = figures["pass_overhead_ms_1000_queued[nobody held]"]
    assert (added.value, added.aim, added.met) == (pytest.approx(0.3), "<= 1", True)
    assert figures["pass_overhead_ms_1000_queued[100 held, a page for each]"].met is False
    without = figures["pass_without_store_ms_1000_queued[nobody held]"]
    assert (without.value, without.aim) == (1.0, None)


def test_the_queue_that_was_asked_for_is_timed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Sequence[str]] = []

    def answer(_: Session, module: str, arguments: Sequence[str]) -> bytes:
        assert module == "sglang_bana.engine.bench_store_pass"
        asked.append(arguments)
        return msgspec.json.encode(SAMPLES)

    monkeypatch.setattr(passes, "run_apart", answer)
    request = BenchRequest(tmp_path / "out.json", seed=7)
    with open_trials(tmp_path / "trials.jsonl", "key") as log:
        session = Session(request, log, lambda _: None, Interruption())
        for _ in range(2):
            figures = measure_passes(session, PassSettings(pairs=3, requests=50))
    assert asked == [["--seed", "7", "--requests", "50", "--pairs", "3"]]
    assert "pass_overhead_ms_50_queued[nobody held]" in figures
    assert msgspec.json.encode(describe_passes(PassSettings(pairs=3)))
