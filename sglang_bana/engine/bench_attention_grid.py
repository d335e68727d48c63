"""Which batches the attention benchmark times, and what each should reach."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum

import msgspec
import torch
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from bana.slo.figures import Aim
from sglang_bana.engine.attention_stand import Heads, StandPlan, Work

PREFIX_FREE = Aim(0.95)
CACHED_PREFIX = Aim(2.0)
DECODE = Aim(1.0)
SHAPES: Mapping[str, Heads] = {
    "smollm2": Heads(query=9, kv=3, dim=64),
    "8x128": Heads(query=8, kv=8, dim=128),
    "32/8x128": Heads(query=32, kv=8, dim=128),
}
DTYPES: Mapping[str, torch.dtype] = {"bf16": torch.bfloat16, "fp32": torch.float32}


class Extent(StrEnum):
    """How much of the grid is measured."""

    QUICK = "quick"
    WHOLE = "whole"


class Case(msgspec.Struct, frozen=True):
    """One batch to time, by its figure's name."""

    figure: str
    plan: StandPlan
    aim: Aim


EXTENDS: Mapping[str, tuple[Sequence[Work], Aim]] = {
    "new=128": ([Work(0, 128)], PREFIX_FREE),
    "new=512": ([Work(0, 512)], PREFIX_FREE),
    "new=2048": ([Work(0, 2048)], PREFIX_FREE),
    "batch=8,new=64": ([Work(0, 64)] * 8, PREFIX_FREE),
    "prefix=1024,new=16": ([Work(1024, 16)], CACHED_PREFIX),
    "prefix=1024,new=128": ([Work(1024, 128)], CACHED_PREFIX),
    "prefix=1024,new=512": ([Work(1024, 512)], CACHED_PREFIX),
    "prefix=4096,new=128": ([Work(4096, 128)], CACHED_PREFIX),
    "prefix=4096,new=512": ([Work(4096, 512)], CACHED_PREFIX),
    "batch=4,prefix=1024,new=64": ([Work(1024, 64)] * 4, CACHED_PREFIX),
}
QUICK_EXTENDS = ("new=128", "prefix=1024,new=16")
MIXED_CONTEXTS = (128, 4096, 300, 1024, 700, 2048, 512, 160)


def list_cases(extent: Extent) -> list[Case]:
    """The grid; QUICK takes a few small batches of the smallest shape."""
    if extent is Extent.QUICK:
        extends = {name: EXTENDS[name] for name in QUICK_EXTENDS}
        return [
            *_list_extends("smollm2", "bf16", extends),
            *_list_decodes("smollm2", "bf16", (1, 4), (128,)),
        ]
    return [
        case
        for shape in SHAPES
        for dtype in DTYPES
        for case in (
            *_list_extends(shape, dtype, EXTENDS),
            *_list_decodes(shape, dtype, (1, 4, 8, 16), (128, 1024, 4096)),
        )
    ]


def _list_extends(
    shape: str, dtype: str, extends: Mapping[str, tuple[Sequence[Work], Aim]]
) -> Iterator[Case]:
    for name, (works, aim) in extends.items():
        plan = StandPlan(SHAPES[shape], works, ForwardMode.EXTEND, DTYPES[dtype])
        yield Case(f"extend_vs_torch_native[{shape},{dtype},{name}]", plan, aim)


def _list_decodes(
    shape: str, dtype: str, batches: Sequence[int], contexts: Sequence[int]
) -> Iterator[Case]:
    grid = {f"batch={b},context={c}": [c] * b for c in contexts for b in batches}
    grid["batch=8,mixed"] = list(MIXED_CONTEXTS)
    for name, lengths in grid.items():
        works = [Work(length - 1, 1) for length in lengths]
        plan = StandPlan(SHAPES[shape], works, ForwardMode.DECODE, DTYPES[dtype])
        yield Case(f"decode_vs_torch_native[{shape},{dtype},{name}]", plan, DECODE)
