"""An estimator learns the machine it watches, follows its changes and survives its accidents."""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterator

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bana.slo.estimate import EstimatorOptions, EstimatorState, StepEstimator
from bana.slo.governor import StepKind
from bana.slo.steps import StepModel, StepShape, count_attended

SLOW = StepModel(0.03, 1e-3, 2e-7, 0.044, 3e-3, 2e-6)
FAST = StepModel(6e-3, 2e-5, 1.2e-9, 7e-3, 4e-5, 4e-8)
MACHINES = pytest.mark.parametrize("model", [SLOW, FAST], ids=["slow", "fast"])
DECODE = StepShape(decode_requests=8, context_tokens=8000)


def _chunk(tokens: int, prefix_tokens: int = 0) -> StepShape:
    attended = count_attended(tokens, prefix_tokens)
    return StepShape(prefill_tokens=tokens, attended_tokens=attended)


def _scale(model: StepModel, factor: float) -> StepModel:
    return StepModel(*(factor * getattr(model, n) for n in StepModel.__struct_fields__))


class Machine:
    """An engine whose steps take what `model` says, with a little noise."""

    def __init__(self, model: StepModel, noise: float = 0.05) -> None:
        self.model = model
        self._noise = noise
        self._rng = np.random.default_rng(11)

    def measure_s(self, shape: StepShape) -> float:
        factor = math.exp(self._noise * self._rng.standard_normal())
        return self.model.estimate_step_s(shape) * factor

    def shapes(self, count: int) -> Iterator[StepShape]:
        """Chunks and decode steps of all sizes, in turn."""
        for _ in range(count // 2):
            tokens = int(self._rng.choice([64, 256, 1024, 2048]))
            yield _chunk(tokens, int(self._rng.integers(0, 20_000)))
            batch = int(self._rng.integers(1, 64))
            context = batch * int(self._rng.integers(100, 4000))
            yield StepShape(decode_requests=batch, context_tokens=context)

    def show(self, estimator: StepEstimator, count: int) -> None:
        """Let the estimator watch `count` steps."""
        for shape in self.shapes(count):
            estimator.observe(shape, self.measure_s(shape))

    def worst_miss(self, estimator: StepEstimator) -> float:
        """The largest relative error over steps of all sizes."""
        pairs = [
            (estimator.model.estimate_step_s(s), self.model.estimate_step_s(s))
            for s in self.shapes(200)
        ]
        return max(abs(predicted_s / true_s - 1.0) for predicted_s, true_s in pairs)


@MACHINES
def test_it_learns_a_machine_from_nothing(model: StepModel) -> None:
    machine, estimator = Machine(model), StepEstimator()
    machine.show(estimator, 600)
    assert machine.worst_miss(estimator) < 0.08


@MACHINES
def test_without_noise_it_finds_the_coefficients(model: StepModel) -> None:
    machine, estimator = Machine(model, noise=0.0), StepEstimator()
    machine.show(estimator, 1500)
    for name in StepModel.__struct_fields__:
        assert getattr(estimator.model, name) == pytest.approx(getattr(model, name), rel=0.05)


def test_mixed_steps_alone_teach_mixed_steps() -> None:
    machine, estimator = Machine(SLOW), StepEstimator()
    mixed = []
    for _ in range(400):
        chunk, decode = machine.shapes(2)
        mixed.append(
            msgspec.structs.replace(
                chunk, decode_requests=decode.decode_requests, context_tokens=decode.context_tokens
            )
        )
    for shape in mixed:
        estimator.observe(shape, machine.measure_s(shape))
    for shape in mixed:
        expected_s = SLOW.estimate_step_s(shape)
        assert estimator.model.estimate_step_s(shape) == pytest.approx(expected_s, rel=0.08)


def test_unmeasured_work_costs_nothing() -> None:
    estimator = StepEstimator()
    estimator.observe(DECODE, 0.1)
    assert estimator.model.estimate_step_s(_chunk(512)) == 0.0
    assert estimator.model.estimate_step_s(DECODE) == pytest.approx(0.1)


def test_a_first_measurement_prices_exactly_what_was_measured() -> None:
    estimator = StepEstimator()
    estimator.observe(_chunk(512), 0.4)
    assert estimator.model.estimate_step_s(_chunk(512)) == pytest.approx(0.4)
    assert estimator.state.errors[StepKind.PREFILL].observations == 0
    half_s = estimator.model.estimate_step_s(_chunk(256))
    assert 0.2 < half_s < 0.35


def test_a_first_mixed_step_prices_both_halves() -> None:
    mixed = StepShape(512, count_attended(512, 0), 8, 8000)
    from_nothing, surprised = StepEstimator(), StepEstimator()
    from_nothing.observe(mixed, 0.4)
    assert from_nothing.model.estimate_step_s(mixed) == pytest.approx(0.4, rel=0.2)
    surprised.observe(DECODE, 0.5)
    surprised.observe(mixed, 0.4)
    assert surprised.model.estimate_step_s(_chunk(512)) > 0.0


def test_a_warm_up_of_few_tokens_does_not_make_a_full_chunk_dear() -> None:
    estimator = StepEstimator()
    estimator.observe(_chunk(4), 0.04)
    assert estimator.model.estimate_step_s(_chunk(2048)) < 5 * 0.04


def test_a_first_stall_is_overruled_at_once() -> None:
    machine, estimator = Machine(SLOW), StepEstimator()
    estimator.observe(_chunk(512), 30.0)
    for _ in range(3):
        estimator.observe(_chunk(512), machine.measure_s(_chunk(512)))
    assert estimator.model.estimate_step_s(_chunk(512)) == pytest.approx(
        SLOW.estimate_step_s(_chunk(512)), rel=0.2
    )


@MACHINES
def test_chunks_of_one_size_leave_the_prices_of_others_sane(model: StepModel) -> None:
    machine, estimator = Machine(model), StepEstimator(model)
    for _ in range(2000):
        estimator.observe(_chunk(512), machine.measure_s(_chunk(512)))
    for tokens, tolerance in ((512, 0.02), (128, 0.2), (2048, 0.2)):
        expected_s = model.estimate_step_s(_chunk(tokens))
        predicted_s = estimator.model.estimate_step_s(_chunk(tokens))
        assert predicted_s == pytest.approx(expected_s, rel=tolerance)


@MACHINES
def test_chunks_of_one_size_show_a_change_of_speed_for_all(model: StepModel) -> None:
    estimator, slower = StepEstimator(model), Machine(_scale(model, 3.0))
    for _ in range(60):
        estimator.observe(_chunk(512), slower.measure_s(_chunk(512)))
    for tokens in (128, 2048):
        expected_s = slower.model.estimate_step_s(_chunk(tokens))
        predicted_s = estimator.model.estimate_step_s(_chunk(tokens))
        assert predicted_s == pytest.approx(expected_s, rel=0.2)


@MACHINES
@pytest.mark.parametrize("factor", [3.0, 1 / 3])
def test_a_change_of_speed_is_followed_within_tens_of_steps(
    model: StepModel, factor: float
) -> None:
    estimator = StepEstimator(model)
    Machine(model).show(estimator, 1000)
    changed = Machine(_scale(model, factor))
    changed.show(estimator, 40)
    assert changed.worst_miss(estimator) < 0.25
    assert estimator.state.reconsidered == 2


def test_a_moderate_drift_is_followed_too() -> None:
    estimator = StepEstimator(SLOW)
    Machine(SLOW).show(estimator, 2000)
    drifted = Machine(_scale(SLOW, 1.2))
    drifted.show(estimator, 800)
    assert drifted.worst_miss(estimator) < 0.1
    assert estimator.state.reconsidered == 0


def test_a_stall_within_a_change_of_speed_does_not_count() -> None:
    estimator, changed = StepEstimator(SLOW), Machine(_scale(SLOW, 3.0))
    for turn in range(8):
        measured_s = changed.measure_s(_chunk(512))
        estimator.observe(_chunk(512), 60.0 if turn == 4 else measured_s)
    expected_s = changed.model.estimate_step_s(_chunk(512))
    assert estimator.model.estimate_step_s(_chunk(512)) == pytest.approx(expected_s, rel=0.15)


def test_only_the_kind_that_changed_is_repriced() -> None:
    machine, estimator = Machine(SLOW), StepEstimator(SLOW)
    machine.show(estimator, 400)
    for _ in range(20):
        estimator.observe(DECODE, 3 * machine.measure_s(DECODE))
        estimator.observe(_chunk(512), machine.measure_s(_chunk(512)))
    decode_s, chunk_s = (estimator.model.estimate_step_s(s) for s in (DECODE, _chunk(512)))
    assert decode_s == pytest.approx(3 * SLOW.estimate_step_s(DECODE), rel=0.1)
    assert chunk_s == pytest.approx(SLOW.estimate_step_s(_chunk(512)), rel=0.1)


def test_mixed_steps_of_the_past_do_not_hold_back_a_change() -> None:
    machine, estimator = Machine(SLOW), StepEstimator(SLOW)
    mixed = StepShape(512, count_attended(512, 0), 8, 8000)
    for _ in range(500):
        estimator.observe(mixed, machine.measure_s(mixed))
    changed = Machine(_scale(SLOW, 3.0))
    changed.show(estimator, 40)
    assert changed.worst_miss(estimator) < 0.25


@MACHINES
def test_a_long_context_is_no_change_of_speed(model: StepModel) -> None:
    prior = msgspec.structs.replace(model, attended_token_s=0.0)
    machine, estimator = Machine(model), StepEstimator(prior)
    for tokens in [128, 256] * 100:
        estimator.observe(_chunk(tokens), machine.measure_s(_chunk(tokens)))
    deep = _chunk(2048, 100_000)
    for _ in range(20):
        estimator.observe(deep, machine.measure_s(deep))
    for shape in (deep, _chunk(128), _chunk(2048)):
        expected_s = model.estimate_step_s(shape)
        assert estimator.model.estimate_step_s(shape) == pytest.approx(expected_s, rel=0.15)


@MACHINES
def test_stalls_do_not_wreck_the_model(model: StepModel) -> None:
    machine, estimator = Machine(model), StepEstimator(model)
    for turn, shape in enumerate(machine.shapes(2000)):
        measured_s = machine.measure_s(shape)
        estimator.observe(shape, 10.0 if turn % 23 < 2 else measured_s)
    assert machine.worst_miss(estimator) < 0.15
    assert estimator.state.reconsidered == 0


def test_a_prior_withstands_a_stall() -> None:
    estimator = StepEstimator(SLOW)
    for _ in range(3):
        estimator.observe(_chunk(512), 10.0)
    estimator.observe(_chunk(512), SLOW.estimate_step_s(_chunk(512)))
    predicted_s = estimator.model.estimate_step_s(_chunk(512))
    assert predicted_s < 1.6 * SLOW.estimate_step_s(_chunk(512))


NO_MEASUREMENTS = [
    (DECODE, 0.0),
    (DECODE, -1.0),
    (DECODE, math.nan),
    (DECODE, math.inf),
    (StepShape(), 0.1),
    (StepShape(prefill_tokens=-1, decode_requests=5), 0.1),
    (StepShape(decode_requests=1, context_tokens=-1), 0.1),
    (StepShape(prefill_tokens=1, attended_tokens=math.nan), 0.1),
    (StepShape(prefill_tokens=1, attended_tokens=math.inf), 0.1),
    (StepShape(prefill_tokens=9, attended_tokens=8.0), 0.1),
]


@pytest.mark.parametrize(("shape", "measured_s"), NO_MEASUREMENTS)
def test_what_is_no_measurement_is_counted_and_ignored(shape: StepShape, measured_s: float) -> None:
    estimator = StepEstimator(SLOW)
    for _ in range(30):
        estimator.observe(shape, measured_s)
    assert estimator.state.ignored == 30
    assert estimator.model == SLOW
    assert all(e.observations == 0 for e in estimator.state.errors.values())


@pytest.mark.parametrize("factor", [1.2, 0.9])
def test_errors_are_those_of_predictions_made_before(factor: float) -> None:
    # The model is solved for the first time only after the last of these.
    options = EstimatorOptions(solve_every_steps=100, error_memory_steps=4)
    estimator = StepEstimator(SLOW, options)
    factors = [1.0, factor] * 10
    for one in factors:
        estimator.observe(DECODE, one * SLOW.estimate_step_s(DECODE))
    error = bias = 0.0
    for count, one in enumerate(factors, 1):
        miss = (one - 1.0) / max(one, 1.0)
        error += (abs(miss) - error) / min(count, 4)
        bias += (miss - bias) / min(count, 4)
    seen = estimator.state.errors[StepKind.DECODE]
    assert seen.observations == 20
    assert seen.error == pytest.approx(error)
    assert seen.bias == pytest.approx(bias)
    assert estimator.state.errors[StepKind.PREFILL].observations == 0


def test_errors_are_kept_by_kind_and_shrink_as_it_learns() -> None:
    machine, estimator = Machine(SLOW), StepEstimator(_scale(SLOW, 1.2))
    machine.show(estimator, 10)
    early = estimator.state.errors
    machine.show(estimator, 600)
    for kind in (StepKind.PREFILL, StepKind.DECODE):
        assert early[kind].bias < -0.1
        assert estimator.state.errors[kind].error < 0.06
        assert abs(estimator.state.errors[kind].bias) < 0.03
    estimator.observe(StepShape(512, 131_328, 8, 8000), 1.0)
    assert estimator.state.errors[StepKind.MIXED].observations == 1


def test_a_state_travels_as_json_and_starts_another_estimator() -> None:
    machine, estimator = Machine(SLOW), StepEstimator()
    machine.show(estimator, 300)
    sent = msgspec.json.encode(estimator.state)
    state = msgspec.json.decode(sent, type=EstimatorState)
    assert state == estimator.state
    assert StepEstimator(state.model).model == estimator.model


def test_equal_histories_give_equal_models() -> None:
    estimators = [StepEstimator(), StepEstimator()]
    for estimator in estimators:
        Machine(FAST).show(estimator, 300)
    assert estimators[0].state == estimators[1].state


def test_memory_is_bounded() -> None:
    machine, estimator = Machine(SLOW), StepEstimator()
    machine.show(estimator, 200)
    early = len(pickle.dumps(estimator))
    machine.show(estimator, 5000)
    Machine(_scale(SLOW, 3.0)).show(estimator, 1000)
    # A few steps wait at any time; each takes under 200 bytes.
    assert len(pickle.dumps(estimator)) < early + 16 * 200


SHAPES = st.builds(
    StepShape,
    prefill_tokens=st.just(0) | st.integers(0, 2**40),
    attended_tokens=st.floats(0, 1e18),
    decode_requests=st.just(0) | st.integers(0, 2**20),
    context_tokens=st.integers(0, 2**40),
)
TIMES = st.floats(allow_nan=True, allow_infinity=True) | st.floats(1e-6, 1e3)
OPTIONS = st.builds(
    EstimatorOptions,
    memory_steps=st.sampled_from([8.0, 200.0]),
    guard=st.sampled_from([0.1, 0.5, 10.0]),
    change_steps=st.sampled_from([3, 8]),
    inertia=st.sampled_from([0.001, 0.1, 1000.0]),
    solve_every_steps=st.sampled_from([1, 8]),
)


@settings(deadline=None, max_examples=60)
@given(
    steps=st.lists(st.tuples(SHAPES, TIMES, st.integers(1, 12)), max_size=12),
    prior=st.sampled_from([None, SLOW, StepModel(0, 0, 0, 0, 0, 0)]),
    options=OPTIONS,
)
def test_coefficients_stay_finite_and_never_negative(
    steps: list[tuple[StepShape, float, int]], prior: StepModel | None, options: EstimatorOptions
) -> None:
    estimator = StepEstimator(prior, options)
    for shape, measured_s, times in steps:
        for _ in range(times):
            estimator.observe(shape, measured_s)
        for name in StepModel.__struct_fields__:
            assert 0 <= getattr(estimator.model, name) < math.inf
        for seen in estimator.state.errors.values():
            assert 0 <= seen.error <= 1
            assert -1 <= seen.bias <= 1


@pytest.mark.parametrize(
    "options",
    [{"guard": 0.0}, {"memory_steps": 1.0}, {"change_steps": 1}, {"inertia": 0.0}],
)
def test_options_out_of_bounds_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(options, type=EstimatorOptions)
