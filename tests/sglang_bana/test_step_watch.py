"""Which step is measured, and over which time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from bana.slo.steps import StepShape, count_attended
from sglang_bana.engine.scheduling import step_watch
from sglang_bana.engine.scheduling.step_watch import MAX_IN_FLIGHT, RunsIn, StepWatch, read_shape


class Clock:
    """Stands still until it is told otherwise."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(step_watch, "time", clock)
    return clock


def mode(name: str) -> Any:
    return SimpleNamespace(
        is_decode=lambda: name == "decode",
        is_target_verify=lambda: False,
        is_extend=lambda: name in ("extend", "mixed"),
    )


def decode_batch(*lengths: int) -> Any:
    return SimpleNamespace(
        forward_mode=mode("decode"), reqs=[SimpleNamespace(seqlen=n) for n in lengths]
    )


def run(watch: StepWatch, clock: Clock, batch: Any, seconds_s: float) -> None:
    launch = watch.begin(batch)
    clock.now_s += seconds_s
    watch.launched(launch)


def test_a_cpu_step_lasts_from_launch_to_launch(clock: Clock) -> None:
    watch = StepWatch(RunsIn.LAUNCH)
    run(watch, clock, decode_batch(5), 0.5)
    clock.now_s += 0.125
    run(watch, clock, decode_batch(5, 6), 0.25)
    seen = watch.ended()
    assert seen is not None
    assert (seen.shape, seen.seconds_s) == (StepShape(0, 0.0, 1, 5), pytest.approx(0.5))
    clock.now_s += 3.0
    seen = watch.ended()
    assert seen is not None
    assert (seen.shape, seen.seconds_s) == (StepShape(0, 0.0, 2, 11), pytest.approx(0.375))


def test_a_cpu_step_after_a_pass_without_one_lasts_from_its_launch(clock: Clock) -> None:
    watch = StepWatch(RunsIn.LAUNCH)
    run(watch, clock, decode_batch(5), 0.5)
    watch.rest()
    clock.now_s += 20.0
    run(watch, clock, decode_batch(5), 0.25)
    seen = [watch.ended(), watch.ended()]
    assert [one.seconds_s for one in seen if one is not None] == pytest.approx([0.5, 0.25])


def test_a_device_step_lasts_from_the_result_before_it(clock: Clock) -> None:
    watch = StepWatch(RunsIn.DEVICE)
    run(watch, clock, decode_batch(5), 0.001)
    run(watch, clock, decode_batch(5), 0.001)
    clock.now_s = 101.0
    first = watch.ended()
    clock.now_s = 101.4
    second = watch.ended()
    assert first is not None
    assert second is not None
    assert (first.seconds_s, second.seconds_s) == (pytest.approx(1.0), pytest.approx(0.4))


def test_a_device_step_after_a_pause_lasts_from_its_launch(clock: Clock) -> None:
    watch = StepWatch(RunsIn.DEVICE)
    assert watch.ended() is None
    clock.now_s = 200.0
    run(watch, clock, decode_batch(5), 0.001)
    clock.now_s = 200.3
    seen = watch.ended()
    assert seen is not None
    assert seen.seconds_s == pytest.approx(0.3)


def test_results_that_never_come_do_not_pile_up(clock: Clock) -> None:
    watch = StepWatch(RunsIn.LAUNCH)
    for seconds in range(50):
        run(watch, clock, decode_batch(5), float(seconds))
    seen = watch.ended()
    assert seen is not None
    assert seen.seconds_s == pytest.approx(50 - MAX_IN_FLIGHT)


def test_the_prompts_of_a_mixed_step_come_first() -> None:
    reqs = [SimpleNamespace(seqlen=n) for n in (64, 40, 9, 30)]
    batch = SimpleNamespace(
        forward_mode=mode("mixed"),
        reqs=reqs,
        decoding_reqs=reqs[2:],
        extend_lens=[32, 40, 1, 1],
        prefix_lens=[32, 0, 8, 29],
    )
    attended = count_attended(32, 32) + count_attended(40, 0)
    assert read_shape(batch) == StepShape(72, attended, 2, 39)


def test_an_idle_batch_has_no_work() -> None:
    assert read_shape(SimpleNamespace(forward_mode=mode("idle"), reqs=[])) == StepShape()
