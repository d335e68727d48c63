from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest

from bana.eval.bench import harness
from bana.eval.bench.errors import BenchError
from bana.eval.bench.facts import Source
from bana.eval.bench.harness import (
    Bench,
    BenchRequest,
    Earlier,
    Scale,
    Session,
    run_bench,
)
from bana.eval.bench.pairs import PairPlan, Run, figure_ratio
from bana.eval.bench.trials import Values, partial_path, trials_path
from bana.slo.errors import ConfigError
from bana.slo.figures import Aim, Figure

PLAN = PairPlan("speed", "ours", "theirs", 5)
FIGURE_KEYS = {"value", "low", "high", "unit", "aim", "met"}


class Fake:
    """A benchmark that counts its runs and stops before run `stop_before`."""

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.stop_before: int | None = None
        self.stop: BaseException = KeyboardInterrupt()

    def measure_run(self, run: Run) -> Values:
        if len(self.runs) == self.stop_before:
            raise self.stop
        self.runs.append(run)
        return {"x": 3.0 + run.index if run.side == "ours" else 1.0}

    def measure(self, session: Session) -> Mapping[str, Figure]:
        pairs = session.run_pairs(PLAN, self.measure_run)
        session.notes["seeds"] = [session.seed_of(i) for i in range(2)]
        return {"speed": figure_ratio(pairs, "x", session.request.seed, Aim(2.0))}

    def bench(self, settings: Mapping[str, object] | None = None) -> Bench:
        return Bench("fake", lambda _: settings or {"size": 3}, self.measure)


def ignore(line: str) -> None:
    del line


def test_the_report_has_the_shape_that_was_promised(tmp_path: Path) -> None:
    output = tmp_path / "out.json"

    run_bench(Fake().bench(), BenchRequest(output, seed=7), ignore)

    report = json.loads(output.read_bytes())
    assert set(report) == {"machine", "commit", "seed", "settings", "figures"}
    assert (report["seed"], report["settings"]["size"]) == (7, 3)
    assert report["settings"]["scale"] == "default"
    assert set(report["figures"]["speed"]) == FIGURE_KEYS
    assert report["figures"]["speed"]["value"] == 5.0
    assert report["figures"]["speed"]["met"] is True
    assert report["machine"]["cores"] == os.cpu_count()
    assert report["machine"]["packages"]["sglang"]


def test_no_host_name_and_no_path_in_the_report(tmp_path: Path) -> None:
    output = tmp_path / "out.json"

    run_bench(Fake().bench(), BenchRequest(output), ignore)

    text = output.read_text()
    assert os.uname().nodename not in text
    assert str(Path.home()) not in text
    assert str(tmp_path) not in text


def test_a_quick_report_claims_nothing(tmp_path: Path) -> None:
    output = tmp_path / "out.json"

    report = run_bench(Fake().bench(), BenchRequest(output, scale=Scale.QUICK), ignore)

    assert all(figure.met is None for figure in report.figures.values())
    assert report.figures["speed"].aim == ">= 2"


def test_a_source_that_changed_meanwhile_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = [Source("abc", ""), Source("abc+dirty", "1"), Source("abc", ""), Source("abc", "")]
    monkeypatch.setattr(harness, "read_source", lambda: sources.pop(0))

    changed = run_bench(Fake().bench(), BenchRequest(tmp_path / "a.json"), ignore)
    same = run_bench(Fake().bench(), BenchRequest(tmp_path / "b.json"), ignore)

    assert (changed.commit, same.commit) == ("abc+changed-while-measured", "abc")


def test_an_interrupted_run_is_taken_up_at_the_pair_it_was_in(tmp_path: Path) -> None:
    output = tmp_path / "out.json"
    fake = Fake()
    fake.stop_before = 5
    with pytest.raises(KeyboardInterrupt):
        run_bench(fake.bench(), BenchRequest(output), ignore)
    assert not output.exists()
    assert partial_path(output).exists()

    fake.stop_before = None
    report = run_bench(fake.bench(), BenchRequest(output), ignore)

    # Pair 2 had only one half: both are taken again.
    assert [run.index for run in fake.runs[5:]] == [2, 2, 3, 3, 4, 4]
    assert report.figures["speed"].value == 5.0
    assert not partial_path(output).exists()
    assert len(trials_path(output).read_text().splitlines()) == 5


def test_fresh_and_other_settings_or_seeds_begin_anew(tmp_path: Path) -> None:
    output = tmp_path / "out.json"
    for other, request in (
        (None, BenchRequest(output, earlier=Earlier.DISCARD)),
        ({"size": 4}, BenchRequest(output)),
        (None, BenchRequest(output, seed=1)),
    ):
        stopped = Fake()
        stopped.stop_before = 5
        with pytest.raises(KeyboardInterrupt):
            run_bench(stopped.bench(), BenchRequest(output), ignore)
        anew = Fake()
        run_bench(anew.bench(other), request, ignore)
        assert len(anew.runs) == 10


def test_a_finished_run_is_not_resumed_from(tmp_path: Path) -> None:
    output = tmp_path / "out.json"
    run_bench(Fake().bench(), BenchRequest(output), ignore)
    again = Fake()

    run_bench(again.bench(), BenchRequest(output), ignore)

    assert len(again.runs) == 10


def test_an_invalid_run_leaves_no_report(tmp_path: Path) -> None:
    output = tmp_path / "out.json"
    fake = Fake()
    fake.stop_before, fake.stop = 3, BenchError("the client was late")

    with pytest.raises(BenchError):
        run_bench(fake.bench(), BenchRequest(output), ignore)

    assert not output.exists()


def test_sigterm_ends_a_run_as_an_interrupt_does(tmp_path: Path) -> None:
    def kill_oneself(run: Run) -> Values:
        del run
        os.kill(os.getpid(), signal.SIGTERM)
        signal.sigtimedwait([], 5)
        raise AssertionError("still running")

    def measure(session: Session) -> Mapping[str, Figure]:
        session.run_pairs(PLAN, kill_oneself)
        return {}

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        run_bench(Bench("fake", lambda _: {}, measure), BenchRequest(tmp_path / "o"), ignore)
    assert signal.getsignal(signal.SIGTERM) == before


def test_an_output_in_no_folder_is_refused_before_measuring(tmp_path: Path) -> None:
    fake = Fake()

    with pytest.raises(ConfigError, match="existing folder"):
        run_bench(fake.bench(), BenchRequest(tmp_path / "no" / "out.json"), ignore)

    assert fake.runs == []


def test_parts_share_their_trials_with_the_whole(tmp_path: Path) -> None:
    taken: list[str] = []

    def take(part: str) -> Values:
        taken.append(part)
        return {"x": 1.0}

    def measure(session: Session) -> Mapping[str, Figure]:
        for part in filter(session.wants, ("a", "b")):
            session.run_trial(part, partial(take, part))
        if session.wants("c"):
            raise KeyboardInterrupt
        return {}

    bench = Bench("fake", lambda _: {}, measure, parts=("a", "b", "c"))
    output = tmp_path / "out.json"
    with pytest.raises(ConfigError, match="unknown part 'd'"):
        run_bench(bench, BenchRequest(output, parts=("a", "d")), ignore)
    with pytest.raises(KeyboardInterrupt):
        run_bench(bench, BenchRequest(output), ignore)
    assert taken == ["a", "b"]

    report = run_bench(bench, BenchRequest(output, parts=("b",)), ignore)

    assert taken == ["a", "b"]
    assert report.settings["parts"] == ["b"]
