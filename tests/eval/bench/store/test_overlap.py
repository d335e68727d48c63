"""What the samples of loads behind forward passes become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import pytest

from bana.eval.bench.errors import BenchError
from bana.eval.bench.harness import BenchRequest, Interruption, Session
from bana.eval.bench.samples import join_samples, split_samples
from bana.eval.bench.store import overlap
from bana.eval.bench.store.overlap import (
    OverlapSamples,
    OverlapSettings,
    describe_overlap,
    judge_overlaps,
    measure_overlap,
    require_comparable,
)
from bana.eval.bench.trials import open_trials
from bana.slo.figures import Figure

EQUAL = OverlapSamples([10.0, 10.0, 10.0], [10.0, 12.0, 8.0], [12.0, 14.0, 10.0])
SAMPLES = {
    "4096/equal/two cores": EQUAL,
    "4096/load is half/two cores": OverlapSamples([10.0], [20.0], [25.0]),
    "4096/equal/one core": OverlapSamples([10.0], [10.0], [21.0]),
}


def test_the_shorter_run_is_hidden_as_far_as_both_take_less_than_their_sum() -> None:
    assert EQUAL.overlaps() == pytest.approx([0.8, 0.8, 1.0])
    hidden = OverlapSamples([5.0], [20.0], [20.0])
    assert hidden.overlaps() == [1.0]
    assert OverlapSamples([5.0], [20.0], [25.0]).overlaps() == [0.0]


def test_samples_survive_an_interruption() -> None:
    assert split_samples(join_samples(SAMPLES), OverlapSamples) == SAMPLES


def test_only_what_is_comparable_on_two_cores_has_an_aim() -> None:
    figures = judge_overlaps(SAMPLES, seed=0)
    aimed = figures["layer_overlap[4096b]"]
    assert (aimed.value, aimed.aim, aimed.met) == (pytest.approx(0.8), ">= 0.7", True)
    half = figures["layer_overlap_load_is_half[4096b]"]
    assert (half.value, half.aim) == (0.5, None)
    alone = figures["one_core_layer_overlap[4096b]"]
    assert (alone.value, alone.aim) == (pytest.approx(-0.1), None)
    assert figures["layer_load_ms[4096b]"].value == 10.0
    assert figures["layer_forward_ms[4096b]"].value == 10.0


def test_an_aim_needs_a_load_and_a_forward_pass_of_like_length() -> None:
    require_comparable(SAMPLES, 1.5)
    uneven = {"4096/equal/two cores": OverlapSamples([10.0], [16.0], [17.0])}
    with pytest.raises(BenchError, match=r"loading took 10\.0 ms, computing 16\.0 ms, allowed"):
        require_comparable(uneven, 1.5)
    require_comparable({"4096/equal/one core": OverlapSamples([10.0], [16.0], [17.0])}, 1.5)


def run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, samples: Mapping[str, OverlapSamples]
) -> tuple[Session, Mapping[str, Figure]]:
    def answer(_: Session, module: str, arguments: Sequence[str]) -> bytes:
        assert module == "sglang_bana.engine.bench_layer_overlap"
        assert arguments == ["--rounds", "3", "--pages", "8"]
        return msgspec.json.encode(samples)

    monkeypatch.setattr(overlap, "run_apart", answer)
    with open_trials(folder / "trials.jsonl", "key") as log:
        request = BenchRequest(folder / "out.json")
        session = Session(request, log, lambda _: None, Interruption())
        return session, measure_overlap(session, OverlapSettings(rounds=3, pages=8))


def test_what_one_core_cannot_show_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = {name: taken for name, taken in SAMPLES.items() if name.endswith("one core")}
    session, figures = run(tmp_path, monkeypatch, alone)
    assert set(figures) == {"one_core_layer_overlap[4096b]"}
    assert "one core only" in str(session.notes["layer_overlap"])


def test_every_case_becomes_a_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session, figures = run(tmp_path, monkeypatch, SAMPLES)
    assert "layer_overlap[4096b]" in figures
    assert session.notes == {}
    assert msgspec.json.encode(describe_overlap(OverlapSettings(rounds=3)))
