"""How long steps take in truth, and what a request takes that has the instance for itself."""

from __future__ import annotations

from typing import Protocol

from bana.slo.steps import StepShape, count_attended


class StepTimes(Protocol):
    """The hardware: seconds of one step. `StepModel` is one, tables of kernels are another."""

    def estimate_step_s(self, shape: StepShape) -> float: ...


class DelayedTimes:
    """The same steps with what the scheduler itself takes for each."""

    def __init__(self, times: StepTimes, overhead_s: float) -> None:
        self._times = times
        self._overhead_s = overhead_s

    def estimate_step_s(self, shape: StepShape) -> float:
        return self._times.estimate_step_s(shape) + self._overhead_s


def measure_alone_ttft_s(times: StepTimes, prompt_tokens: int, chunk_tokens: int) -> float:
    """The TTFT of a prompt that is alone and finds nothing cached, in chunks of `chunk_tokens`."""
    ttft_s = 0.0
    for done in range(0, prompt_tokens, chunk_tokens):
        new = min(chunk_tokens, prompt_tokens - done)
        ttft_s += times.estimate_step_s(StepShape(new, count_attended(new, done)))
    return ttft_s


def measure_alone_tpot_s(times: StepTimes, prompt_tokens: int, output_tokens: int) -> float:
    """The TPOT of an answer that is alone: a decode step in its middle."""
    context_tokens = prompt_tokens + max(1, output_tokens // 2)
    shape = StepShape(decode_requests=1, context_tokens=context_tokens)
    return times.estimate_step_s(shape)
