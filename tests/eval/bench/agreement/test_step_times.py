"""The model is that of the steps decided while the fit ran, and of no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from bana.eval.bench.agreement.step_times import (
    list_model,
    measure_log,
    read_mean_model,
    read_model,
)
from bana.eval.bench.errors import BenchError
from bana.slo.admission import AdmissionDecision, ArrivalView, Verdict
from bana.slo.budget import Budget
from bana.slo.decisions import AdmissionRecord, GovernorRecord, LogHeader, LogLine, encode_line
from bana.slo.governor import StepKind, StepPlan, StepView
from bana.slo.steps import StepModel, StepShape


def model(base_s: float) -> StepModel:
    return StepModel(base_s, 0.004, 1e-7, 0.08, 0.006, 1e-6)


def step(base_s: float) -> GovernorRecord:
    view = StepView(model(base_s), 0, 0, None, 10, 0, 0, 64, 1)
    return GovernorRecord(0, view, StepPlan(StepKind.PREFILL, 10, "no_decodes"))


ARRIVAL = AdmissionRecord(
    1,
    0.0,
    ArrivalView(Budget("standard", 0.0, 1.0, 0.1), 0.1, 0.0, 1.0),
    AdmissionDecision(Verdict.ADMITTED, "all"),
)


def write(path: Path, *lines: LogLine, torn: bytes = b"") -> Path:
    path.write_bytes(b"".join(encode_line(line) + b"\n" for line in lines) + torn)
    return path


def test_it_is_the_mean_over_whole_decisions_of_the_governor(tmp_path: Path) -> None:
    torn = encode_line(step(9.0))[:-20]
    log = write(tmp_path / "log", LogHeader(0), step(0.1), ARRIVAL, step(0.3), torn=torn)
    found = read_mean_model(log, 0)
    assert found.prefill_base_s == pytest.approx(0.2)
    shape = StepShape(300, 45_150.0, 0, 0)
    expected = [model(base_s).estimate_step_s(shape) for base_s in (0.1, 0.3)]
    assert found.estimate_step_s(shape) == pytest.approx(sum(expected) / 2)


def test_what_was_decided_before_the_fit_does_not_count(tmp_path: Path) -> None:
    log = write(tmp_path / "log", LogHeader(0), step(0.1))
    begun = measure_log(log)
    with pytest.raises(BenchError, match=rf"after byte {begun}: nothing ran"):
        read_mean_model(log, begun)
    with log.open("ab") as file:
        file.write(encode_line(step(0.4)) + b"\n")
    assert read_mean_model(log, begun) == model(0.4)


def test_without_a_log_there_is_no_fit(tmp_path: Path) -> None:
    for read in (measure_log, lambda log: read_mean_model(log, 0)):
        with pytest.raises(BenchError, match="gone cannot be read"):
            read(tmp_path / "gone")


def test_coefficients_are_kept_beside_other_numbers() -> None:
    kept = {"rate_rps": 1.0, **list_model(model(0.5))}
    assert read_model(kept) == model(0.5)
