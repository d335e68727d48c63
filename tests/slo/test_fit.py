"""A step log yields the coefficients that made it, whatever else is in it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bana.slo.errors import PlanError
from bana.slo.fit import StepObservation, fit_model
from bana.slo.steps import StepModel, StepShape, count_attended

SLOW = StepModel(0.03, 1e-3, 2e-7, 0.044, 3e-3, 2e-6)
FAST = StepModel(6e-3, 2e-5, 1.2e-9, 7e-3, 4e-5, 4e-8)
GARBAGE = [
    StepObservation(StepShape(), 0.1),
    StepObservation(StepShape(prefill_tokens=100, attended_tokens=5050), 0.0),
    StepObservation(StepShape(prefill_tokens=100, attended_tokens=5050), math.nan),
    StepObservation(StepShape(prefill_tokens=100, attended_tokens=math.inf), 0.1),
    StepObservation(StepShape(decode_requests=4, context_tokens=-1), 0.1),
]


def _log(model: StepModel, kinds: str, noise: float = 0.05) -> list[StepObservation]:
    rng = np.random.default_rng(7)
    log = []
    for turn in range(400):
        chunk, prefix = int(rng.choice([64, 256, 1024, 2048])), int(rng.integers(0, 20_000))
        batch = int(rng.integers(1, 64))
        context = batch * int(rng.integers(100, 4000))
        kind = kinds[turn % len(kinds)]
        has_prefill, has_decode = kind in "pm", kind in "dm"
        shape = StepShape(
            prefill_tokens=chunk * has_prefill,
            attended_tokens=count_attended(chunk, prefix) * has_prefill,
            decode_requests=batch * has_decode,
            context_tokens=context * has_decode,
        )
        factor = float(np.exp(noise * rng.standard_normal()))
        log.append(StepObservation(shape, model.estimate_step_s(shape) * factor))
    return log


def _misses(fitted: StepModel, log: list[StepObservation]) -> list[float]:
    pairs = [(fitted.estimate_step_s(o.shape), o.measured_s) for o in log]
    return [abs(predicted_s / measured_s - 1.0) for predicted_s, measured_s in pairs]


@pytest.mark.parametrize("model", [SLOW, FAST], ids=["slow", "fast"])
@pytest.mark.parametrize("kinds", ["pd", "pdm", "m"])
def test_it_predicts_the_steps_of_the_machine_that_wrote_the_log(
    model: StepModel, kinds: str
) -> None:
    fitted = fit_model(_log(model, kinds))
    assert max(_misses(fitted, _log(model, kinds, noise=0.0))) < 0.05


def test_a_clean_log_yields_its_coefficients() -> None:
    fitted = fit_model(_log(SLOW, "pd", noise=0.0))
    for name in StepModel.__struct_fields__:
        assert getattr(fitted, name) == pytest.approx(getattr(SLOW, name), rel=0.02)


def test_stalls_and_garbage_do_not_count() -> None:
    log = _log(SLOW, "pd")
    stalled = [StepObservation(o.shape, 60.0) for o in log[::20]]
    fitted = fit_model(log + stalled + GARBAGE)
    assert max(_misses(fitted, _log(SLOW, "pd", noise=0.0))) < 0.15


def test_one_endless_step_does_not_set_the_scale() -> None:
    log = _log(FAST, "pd")
    endless = [StepObservation(o.shape, 1e9) for o in log[:2]]
    assert max(_misses(fit_model(endless + log), _log(FAST, "pd", noise=0.0))) < 0.05


def test_what_the_log_never_shows_costs_nothing() -> None:
    fitted = fit_model(_log(SLOW, "p"))
    assert fitted.estimate_step_s(StepShape(decode_requests=8, context_tokens=800)) == 0.0
    assert fitted.prefill_token_s == pytest.approx(SLOW.prefill_token_s, rel=0.05)


def test_one_line_is_predicted() -> None:
    (one, *_) = _log(FAST, "p")
    assert fit_model([one]).estimate_step_s(one.shape) == pytest.approx(one.measured_s, rel=0.01)


@pytest.mark.parametrize("log", [[], GARBAGE], ids=["empty", "garbage"])
def test_a_log_without_measurements_is_refused(log: list[StepObservation]) -> None:
    with pytest.raises(PlanError, match=rf"none of {len(log)} observations"):
        fit_model(log)


SHAPES = st.builds(
    StepShape,
    prefill_tokens=st.integers(0, 2**40),
    attended_tokens=st.floats(0, 1e18),
    decode_requests=st.integers(0, 2**20),
    context_tokens=st.integers(0, 2**40),
)


@settings(deadline=None, max_examples=50)
@given(log=st.lists(st.builds(StepObservation, SHAPES, st.floats(0, 1e6)), max_size=8))
def test_coefficients_are_finite_and_never_negative(log: list[StepObservation]) -> None:
    try:
        fitted = fit_model(log)
    except PlanError:
        return
    for name in StepModel.__struct_fields__:
        assert 0 <= getattr(fitted, name) < math.inf
