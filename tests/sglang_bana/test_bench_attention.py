from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch

from bana.slo.errors import ConfigError

with warnings.catch_warnings():
    # SGLang warns at import about accelerators that are not there.
    warnings.simplefilter("ignore")
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    from sglang_bana.engine.attention_stand import Heads, StandPlan, Work, build_stand
    from sglang_bana.engine.bench_attention import (
        BenchOptions,
        Clock,
        Measured,
        main,
        run_attention_bench,
        time_pairs,
    )
    from sglang_bana.engine.bench_attention_grid import Extent, list_cases

RunBench = Callable[..., int]


@pytest.fixture
def run_bench(monkeypatch: pytest.MonkeyPatch) -> RunBench:
    """A function: command line in, exit status out."""

    def run(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["bench_attention", *arguments])
        return main()

    return run


def test_a_quick_run_writes_figures_that_claim_nothing(run_bench: RunBench, tmp_path: Path) -> None:
    target = tmp_path / "attention.json"

    assert run_bench("--json", str(target), "--quick", "--seed", "3", "--clock", "cpu") == 0

    report = msgspec.json.decode(target.read_bytes(), type=Measured)
    found = [report.settings[name] for name in ("seed", "extent", "clock")]
    assert found == [3, "quick", "cpu"]
    assert set(report.figures) == {case.figure for case in list_cases(Extent.QUICK)}
    for figure in report.figures.values():
        assert 0 < figure.low <= figure.value <= figure.high
        assert figure.aim is not None
        assert figure.met is None
    assert [path.name for path in tmp_path.iterdir()] == ["attention.json"]


@pytest.mark.parametrize("folder", ["absent/attention.json", ""])
def test_a_report_that_cannot_be_written_is_refused_at_once(
    run_bench: RunBench, tmp_path: Path, capsys: pytest.CaptureFixture[str], folder: str
) -> None:
    assert run_bench("--json", str(tmp_path / folder), "--quick") == 2
    said = capsys.readouterr().err
    assert "name a file in an existing folder" in said
    # Nothing was measured before.
    assert said.count("\n") == 1


@pytest.mark.parametrize("options", [{"pairs": 4}, {"threads": 0}, {"seed": -1}])
def test_options_that_measure_nothing_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="pairs must be >= 5, threads >= 1 and seed >= 0"):
        run_attention_bench(BenchOptions(extent=Extent.QUICK, **options), print)


def test_the_grid_covers_what_the_aims_are_about() -> None:
    cases = list_cases(Extent.WHOLE)
    assert len({case.figure for case in cases}) == len(cases)
    assert {case.figure for case in list_cases(Extent.QUICK)} < {case.figure for case in cases}
    for case in cases:
        works = case.plan.works
        if case.plan.mode is ForwardMode.DECODE:
            assert case.figure.startswith("decode_vs_torch_native[")
            assert (case.aim.target, {work.new for work in works}) == (1.0, {1})
        else:
            assert case.figure.startswith("extend_vs_torch_native[")
            longest = min(work.prefix for work in works)
            assert case.aim.target == (2.0 if longest >= 1024 else 0.95)
    batches = {len(case.plan.works) for case in cases if case.plan.mode is ForwardMode.DECODE}
    assert batches == {1, 4, 8, 16}


@pytest.mark.parametrize("clock", list(Clock))
def test_both_sides_of_a_pair_are_timed(clock: Clock) -> None:
    plan = StandPlan(Heads(4, 2, 16), [Work(64, 8)], ForwardMode.EXTEND, torch.float32)
    theirs, ours = time_pairs(build_stand(plan, 0), BenchOptions(pairs=5, clock=clock))

    assert len(theirs) == len(ours) == 5
    assert min(theirs) > 0
    assert min(ours) > 0
