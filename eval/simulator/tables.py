"""Step times from measured kernels: the tables of `aiconfigurator-core` for SGLang.

The package prices whole steps of equal requests. A step of an engine mixes unequal ones, so its
parts are looked up apart and added:

    prefill   work per token(new)            + attention(new, context before it)
    decode    work per request(requests)     + attention(requests, mean context)
    mixed     work per token(new + requests) + both attentions
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from bana.slo.errors import ConfigError
from bana.slo.steps import StepShape

if TYPE_CHECKING:
    from aiconfigurator_core.sdk import EngineHandle

PACKAGE = "aiconfigurator-core"
TOKEN_KNOTS = (
    *(1, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096),
    *(6144, 8192, 12_288, 16_384),
)
CONTEXT_KNOTS = (0, 256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536, 131_072)
BATCH_KNOTS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512)
PREFILL_ATTENTION = "context_attention"
DECODE_ATTENTION = "generation_attention"


class Curve:
    """Linear between knots, and beyond the last along the last piece."""

    def __init__(self, knots: Sequence[int], values: Sequence[float]) -> None:
        self._knots = tuple(knots)
        self._values = tuple(values)

    def at(self, x: float) -> float:
        place = _place(self._knots, x)
        low, high = self._knots[place], self._knots[place + 1]
        share = (x - low) / (high - low)
        start = self._values[place]
        return start + share * (self._values[place + 1] - start)


class Surface:
    """Linear in both directions between knots, and beyond the last along the last piece."""

    def __init__(
        self, knots: Sequence[int], across: Sequence[int], rows: Sequence[Sequence[float]]
    ) -> None:
        self._knots = tuple(knots)
        self._rows = tuple(Curve(across, row) for row in rows)

    def at(self, x: float, y: float) -> float:
        place = _place(self._knots, x)
        low, high = self._knots[place], self._knots[place + 1]
        share = (x - low) / (high - low)
        start = self._rows[place].at(y)
        return start + share * (self._rows[place + 1].at(y) - start)


class TableTimes:
    """Steps of one model on one kind of device, from measured kernels."""

    def __init__(
        self,
        prefill_work: Curve,
        prefill_attention: Surface,
        decode_work: Curve,
        decode_attention: Surface,
    ) -> None:
        self._prefill_work = prefill_work
        self._prefill_attention = prefill_attention
        self._decode_work = decode_work
        self._decode_attention = decode_attention

    def estimate_step_s(self, shape: StepShape) -> float:
        new, requests = shape.prefill_tokens, shape.decode_requests
        step_s = 0.0
        if new:
            step_s += self._attend_prompts(shape) + self._prefill_work.at(new + requests)
        if requests:
            step_s += self._decode_attention.at(requests, shape.context_tokens / requests)
            step_s += 0.0 if new else self._decode_work.at(requests)
        return step_s

    def _attend_prompts(self, shape: StepShape) -> float:
        """Attention as of one prompt chunk that attends to as much as all of them together."""
        new = shape.prefill_tokens
        before = shape.attended_tokens / new - (new + 1) / 2
        if before >= 0:
            return self._prefill_attention.at(new, before)
        # Several short prompts attend to less than one of their joint length would.
        alone_tokens = new * (new + 1) / 2
        return self._prefill_attention.at(new, 0) * shape.attended_tokens / alone_tokens


def read_tables(model: str, system: str, tensor_parallel: int) -> TableTimes:
    """The step times of `model` on `system`; ConfigError where the tables do not have it."""
    handle = _compile(model, system, tensor_parallel)
    prefill = [[_price_prefill(handle, n, c) for c in CONTEXT_KNOTS] for n in TOKEN_KNOTS]
    decode = [[_price_decode(handle, b, c) for c in CONTEXT_KNOTS[1:]] for b in BATCH_KNOTS]
    # What is not attention does not depend on the context.
    return TableTimes(
        Curve(TOKEN_KNOTS, [row[0][0] for row in prefill]),
        Surface(TOKEN_KNOTS, CONTEXT_KNOTS, [[cell[1] for cell in row] for row in prefill]),
        Curve(BATCH_KNOTS, [row[0][0] for row in decode]),
        Surface(BATCH_KNOTS, CONTEXT_KNOTS[1:], [[cell[1] for cell in row] for row in decode]),
    )


def _compile(model: str, system: str, tensor_parallel: int) -> EngineHandle:
    try:
        from aiconfigurator_core.sdk import EngineHandle
    except ImportError as error:
        raise ConfigError(
            f"service.kind='tables' needs {PACKAGE} ({error}); install bana[sim], or give "
            "service.kind='coefficients'"
        ) from error
    compile_engine: Callable[..., EngineHandle] = EngineHandle.compile
    try:
        return compile_engine(model, system, "sglang", tp_size=tensor_parallel)
    except Exception as error:
        raise ConfigError(
            f"{PACKAGE} has no SGLang tables for model {model!r} on {system!r} with "
            f"{tensor_parallel} devices: {error}; name another service.system or service.model"
        ) from error


def _price_prefill(handle: EngineHandle, new: int, before: int) -> tuple[float, float]:
    """Seconds of work and of attention of one prompt chunk."""
    steps, _ = handle.run_static_per_op(batch_size=1, isl=new + before, osl=1, prefix=before)
    return _split(steps, PREFILL_ATTENTION)


def _price_decode(handle: EngineHandle, requests: int, context: int) -> tuple[float, float]:
    """Seconds of work and of attention of one decode step of equal requests."""
    _, steps = handle.run_static_per_op(batch_size=requests, isl=context, osl=2)
    return _split(steps, DECODE_ATTENTION)


def _split(
    operations: Sequence[tuple[str, float, float, str]], attention: str
) -> tuple[float, float]:
    attention_ms = sum(ms for name, ms, *_ in operations if name == attention)
    return (sum(ms for _, ms, *_ in operations) - attention_ms) / 1e3, attention_ms / 1e3


def _place(knots: Sequence[int], x: float) -> int:
    return min(max(bisect.bisect_right(knots, x) - 1, 0), len(knots) - 2)
