"""Token ids that are computed where they are needed, from a key and a position.

A *run* is an endless sequence of values; a prompt is made of *spans* of runs. Equal spans are
equal tokens, whatever else was drawn before, so that sharing is exact:

    conversation   ├ family run, 0..512 ┤├ own run, 0..80 ┤
    its next turn  ├ family run, 0..512 ┤├ own run, 0..80 ──── 80..210 ┤

Values come from splitmix64 of key and position (Steele, Lea and Flood, OOPSLA 2014), so any part
of a run costs only itself. The first value of a run is chosen, not drawn: runs with different
`first` differ at once, as long as there are more values than runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

import msgspec
import numpy as np
from numpy.typing import NDArray

_MASK = 2**64 - 1
_STEP = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_SHIFT_1, _SHIFT_2, _HALF = np.uint64(30), np.uint64(27), np.uint64(32)
_STEPS = np.arange(2**16, dtype=np.uint64) * np.uint64(_STEP)


class Run(msgspec.Struct, frozen=True, gc=False):
    """An endless sequence of values; `first` (modulo the number of values) is its first one."""

    key: int
    first: int


class Span(msgspec.Struct, frozen=True, gc=False):
    """`count` values of a run from position `start` on."""

    run: Run
    start: int
    count: int


class TokenRange(msgspec.Struct, frozen=True):
    """The ids from `low` on, `count` of them."""

    low: int
    count: int


class RecordedIds(msgspec.Struct, frozen=True, gc=False):
    """Token ids that somebody else chose."""

    ids: tuple[int, ...]


class TokenIds(Sequence[int]):
    """The token ids of a prompt. `list(ids)` is the fast way to all of them, and what JSON takes.

    Each full read computes them anew (some 20 ns a token) and keeps nothing: a trace of fifty
    million tokens takes no memory before it is sent.
    """

    __slots__ = ("_allowed", "_spans")

    def __init__(self, spans: tuple[Span, ...], allowed: TokenRange) -> None:
        self._spans = spans
        self._allowed = allowed

    def array(self) -> NDArray[np.int32]:
        """All ids at once."""
        values = draw_values(self._spans, self._allowed.count).astype(np.int32)
        return values + np.int32(self._allowed.low)

    def __len__(self) -> int:
        return sum(span.count for span in self._spans)

    def __iter__(self) -> Iterator[int]:
        return iter(self.array().tolist())

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        ids: list[int] = self.array().tolist()
        return ids[index]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TokenIds):
            return NotImplemented
        return (self._spans, self._allowed) == (other._spans, other._allowed)

    def __hash__(self) -> int:
        return hash((self._spans, self._allowed))

    def __repr__(self) -> str:
        return f"<{len(self)} token ids>"


def derive_run(base: int, index: int) -> Run:
    """The run number `index` below the seed's key `base`."""
    return Run(_mix((base + (index + 1) * _STEP) & _MASK), index)


def disguise_run(run: Run, values: int) -> Run:
    """Another run in place of `run`, the same one each time; the first of `values` differs too."""
    return Run(_mix(run.key ^ _MIX_1), values - 1 - run.first % values)


def draw_values(spans: Sequence[Span], values: int) -> NDArray[np.int64]:
    """The values of all spans in turn, each from 0 to `values` - 1. O(length)."""
    state = np.empty(sum(span.count for span in spans), dtype=np.uint64)
    firsts: dict[int, int] = {}
    begin = 0
    for span in spans:
        if span.start == 0 and span.count > 0:
            firsts[begin] = span.run.first % values
        _fill_positions(state[begin : begin + span.count], span)
        begin += span.count
    _mix_in_place(state)
    # The upper half scaled to the range: no slow division, no measurable bias below 2**31.
    state >>= _HALF
    state *= np.uint64(values)
    state >>= _HALF
    for place, first in firsts.items():
        state[place] = first
    return state.view(np.int64)


def _fill_positions(state: NDArray[np.uint64], span: Span) -> None:
    """Key plus position times step, from a table that serves all spans."""
    for done in range(0, span.count, len(_STEPS)):
        part = state[done : done + len(_STEPS)]
        offset = np.uint64((span.run.key + (span.start + done) * _STEP) & _MASK)
        np.add(_STEPS[: len(part)], offset, out=part)


def _mix(value: int) -> int:
    value = ((value ^ (value >> 30)) * _MIX_1) & _MASK
    value = ((value ^ (value >> 27)) * _MIX_2) & _MASK
    return value ^ (value >> 31)


def _mix_in_place(state: NDArray[np.uint64]) -> None:
    # Without splitmix64's last shift, which hardly reaches the upper half that is used.
    state ^= state >> _SHIFT_1
    state *= np.uint64(_MIX_1)
    state ^= state >> _SHIFT_2
    state *= np.uint64(_MIX_2)
