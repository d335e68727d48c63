"""The index as a part of the store's benchmark: what is asked for, and what its figures are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from bana.eval.bench.harness import BenchRequest, Interruption, Session
from bana.eval.bench.index import AIMED_PAGES, IndexSettings, list_figures, measure_index
from bana.eval.bench.store import index_part
from bana.eval.bench.store.index_part import (
    describe_index,
    join_figures,
    measure_index_apart,
    split_figures,
)
from bana.eval.bench.trials import open_trials
from bana.slo.figures import BenchReport, Figure

TAKEN = {
    "index_ops_per_s_10m": Figure(900_000.0, 800_000.0, 950_000.0, "operations/s"),
    "index_calls_per_s_10m": Figure(9_000.0, 8_000.0, 9_500.0, "calls/s"),
    "index_bytes_per_page": Figure(150.0, 149.0, 201.0, "bytes"),
}


def test_a_figure_names_its_size_and_only_the_aimed_one_is_judged() -> None:
    assert list(list_figures(AIMED_PAGES)) == list(TAKEN)
    assert [kind.aim is None for kind in list_figures(AIMED_PAGES).values()] == [False, True, False]
    small = list_figures(100_000)
    assert list(small) == [
        "index_ops_per_s_100k",
        "index_calls_per_s_100k",
        "index_bytes_per_page_100k",
    ]
    assert all(kind.aim is None for kind in small.values())


def test_figures_survive_an_interruption_and_are_held_against_their_aims() -> None:
    figures = split_figures(join_figures(TAKEN), AIMED_PAGES)
    assert [(f.value, f.low, f.high) for f in figures.values()] == [
        (f.value, f.low, f.high) for f in TAKEN.values()
    ]
    assert figures["index_ops_per_s_10m"].met is True
    assert figures["index_calls_per_s_10m"].met is None
    assert figures["index_bytes_per_page"].met is False


def test_a_small_index_gives_the_figures_of_its_size() -> None:
    settings = IndexSettings(pages=2_000, documents=16, windows=2, window_s=0.01)
    figures = measure_index(settings, seed=0).figures
    assert set(figures) == set(list_figures(2_000))
    assert figures["index_ops_per_s_2k"].value > 0
    assert figures["index_ops_per_s_2k"].aim is None


def test_the_index_is_measured_once_in_a_process_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Sequence[str]] = []

    def answer(_: Session, module: str, arguments: Sequence[str]) -> bytes:
        assert module == "bana.eval.bench.index"
        asked.append(arguments)
        return msgspec.json.encode(BenchReport({}, "commit", 7, {}, TAKEN))

    monkeypatch.setattr(index_part, "run_apart", answer)
    settings = IndexSettings(pages=AIMED_PAGES, windows=3, window_s=2.5)
    request = BenchRequest(tmp_path / "out.json", seed=7)
    with open_trials(tmp_path / "trials.jsonl", "key") as log:
        session = Session(request, log, lambda _: None, Interruption())
        for _ in range(2):
            assert set(measure_index_apart(session, settings)) == set(TAKEN)
    size = ["--pages", "10000000", "--seed", "7"]
    assert asked == [[*size, "--windows", "3", "--window-s", "2.5"]]
    assert msgspec.json.encode(describe_index(settings))
