from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bana.eval.requests import Workload
from bana.eval.workload.build import build_workload
from bana.eval.workload.scale import scale_rate
from bana.eval.workload.spec import ArrivalSpec, PromptSpec, UniformLength, WorkloadSpec
from bana.slo.errors import ConfigError

SPEC = WorkloadSpec(
    ArrivalSpec(rate_rps=4.0, duration_s=20.0, warmup_s=5.0),
    PromptSpec(input_tokens=UniformLength(10, 50)),
)


@pytest.fixture(scope="module")
def workload() -> Workload:
    return build_workload(SPEC, 3)


@settings(deadline=None)
@given(factor=st.floats(0.01, 100))
def test_only_time_changes(workload: Workload, factor: float) -> None:
    scaled = scale_rate(workload, factor)
    moved = [msgspec.structs.replace(r, due_s=0.0) for r in scaled.requests]

    assert moved == [msgspec.structs.replace(r, due_s=0.0) for r in workload.requests]
    assert [r.due_s * factor for r in scaled.requests] == pytest.approx(
        [r.due_s for r in workload.requests]
    )
    assert scaled.window_s * factor == pytest.approx(workload.window_s)
    assert scaled.facts["rate_rps"] == pytest.approx(factor * 1.0 * rate_of(workload))
    assert scaled.facts["arrival_cv"] == pytest.approx(workload.facts["arrival_cv"])
    assert scaled.facts["time_scale"] == factor
    assert scaled.facts["content_sha256"] == workload.facts["content_sha256"]


def rate_of(workload: Workload) -> float:
    return float(str(workload.facts["rate_rps"]))


def test_the_fingerprint_tells_rates_apart(workload: Workload) -> None:
    assert scale_rate(workload, 1.0) == workload
    assert scale_rate(workload, 2.0).fingerprint != workload.fingerprint


def test_a_process_at_another_rate_is_the_scaled_one(workload: Workload) -> None:
    arrivals = ArrivalSpec(rate_rps=8.0, duration_s=10.0, warmup_s=2.5)
    built = build_workload(msgspec.structs.replace(SPEC, arrivals=arrivals), 3)

    assert built.facts["content_sha256"] == workload.facts["content_sha256"]
    assert built.requests == scale_rate(workload, 2.0).requests


@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan"), float("inf"), 1e9])
def test_absurd_factors_are_refused(workload: Workload, factor: float) -> None:
    with pytest.raises(ConfigError, match="rate factor"):
        scale_rate(workload, factor)
