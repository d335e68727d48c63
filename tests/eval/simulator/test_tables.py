"""Measured kernels as step times, beside what their package says of whole steps."""

from __future__ import annotations

import pytest

from bana.eval.simulator.fitting import fit_steps
from bana.eval.simulator.tables import Curve, Surface, TableTimes, read_tables
from bana.slo.errors import ConfigError
from bana.slo.steps import StepModel, StepShape, count_attended

MODEL = "meta-llama/Meta-Llama-3.1-70B"
SYSTEMS = ("gb200", "h200_sxm")


@pytest.fixture(scope="module", params=SYSTEMS)
def system(request: pytest.FixtureRequest) -> str:
    pytest.importorskip("aiconfigurator_core", reason="the extra `sim` is not installed")
    return str(request.param)


@pytest.fixture(scope="module")
def tables(system: str) -> TableTimes:
    return read_tables(MODEL, system, 4)


def chunk(new: int, before: int, decodes: int = 0, context: int = 0) -> StepShape:
    return StepShape(new, count_attended(new, before), decodes, decodes * context)


def test_a_curve_is_linear_between_knots_and_goes_on_beyond() -> None:
    curve = Curve((0, 10, 20), (1.0, 2.0, 5.0))
    assert [curve.at(x) for x in (0, 5, 10, 15, 30)] == [1.0, 1.5, 2.0, 3.5, 8.0]


def test_a_surface_is_linear_in_both_directions() -> None:
    surface = Surface((0, 10), (0, 4), ((1.0, 5.0), (11.0, 15.0)))
    assert surface.at(5, 2) == pytest.approx(8.0)
    assert surface.at(20, 8) == pytest.approx(29.0)


def test_steps_are_what_the_package_says_of_them(system: str, tables: TableTimes) -> None:
    sdk = pytest.importorskip("aiconfigurator_core.sdk")
    handle = sdk.EngineHandle.compile(MODEL, system, "sglang", tp_size=4)
    for new, before in ((16, 0), (100, 0), (700, 300), (2048, 8192), (512, 40_000)):
        expected_s = handle.predict_prefill_latency(1, new + before, before) / 1e3
        assert tables.estimate_step_s(chunk(new, before)) == pytest.approx(expected_s, rel=0.06)
    for requests, context in ((1, 100), (7, 1500), (100, 3000), (256, 700)):
        shape = StepShape(decode_requests=requests, context_tokens=requests * context)
        expected_s = handle.predict_decode_latency(requests, context) / 1e3
        assert tables.estimate_step_s(shape) == pytest.approx(expected_s, rel=0.06)
    for requests, new in ((1, 64), (8, 512), (128, 2048)):
        expected_s = handle.mixed_step_latency(new, requests, new, 2) / 1e3
        seen_s = tables.estimate_step_s(chunk(new, 0, requests, new))
        assert seen_s == pytest.approx(expected_s, rel=0.1)


def test_several_short_prompts_cost_less_than_one_as_long(tables: TableTimes) -> None:
    several = StepShape(2000, 20 * count_attended(100, 0))
    apart_s = tables.estimate_step_s(several)
    assert apart_s < tables.estimate_step_s(chunk(2000, 0))
    assert apart_s > tables.estimate_step_s(StepShape(2000, 0.0))


def test_coefficients_come_near_and_say_how_near(tables: TableTimes) -> None:
    fit = fit_steps(tables)
    assert -0.16 < fit.lowest_error < 0 < fit.highest_error < 0.17
    for shape in (chunk(512, 0), chunk(2048, 4096), StepShape(0, 0.0, 64, 64_000)):
        error = fit.model.estimate_step_s(shape) / tables.estimate_step_s(shape) - 1
        assert fit.lowest_error - 0.02 < error < fit.highest_error + 0.02


def test_coefficients_that_are_the_truth_are_found() -> None:
    truth = StepModel(0.008, 3e-5, 6e-10, 0.0085, 2e-5, 1e-8)
    fit = fit_steps(truth)
    assert max(-fit.lowest_error, fit.highest_error) < 0.01


@pytest.mark.parametrize("wrong", [("no/such-model", "gb200"), (MODEL, "no_such_system")])
def test_what_the_tables_do_not_have_is_one_error(wrong: tuple[str, str]) -> None:
    pytest.importorskip("aiconfigurator_core", reason="the extra `sim` is not installed")
    with pytest.raises(ConfigError, match=f"no SGLang tables for model '{wrong[0]}'"):
        read_tables(*wrong, 4)
