from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from bana.eval.workload.lengths import Column, Draw, Lengths, draw_lengths
from bana.eval.workload.seeds import Purpose, Seeds
from bana.eval.workload.spec import (
    ConstantLength,
    EmpiricalLength,
    LengthSpec,
    LognormalLength,
    UniformLength,
)
from bana.slo.errors import ConfigError

COUNT = 50_000


def draw(spec: LengthSpec, count: int = COUNT, column: Column = Column.INPUT) -> Lengths:
    purpose = Purpose.INPUT if column is Column.INPUT else Purpose.OUTPUT
    return draw_lengths(spec, Draw(count, purpose, column), Seeds(3))


def test_constant_lengths_are_all_the_same() -> None:
    assert draw(ConstantLength(7), 3).tokens.tolist() == [7, 7, 7]


def test_uniform_lengths_take_every_value_of_the_range_equally_often() -> None:
    values, counts = np.unique(draw(UniformLength(3, 12)).tokens, return_counts=True)

    assert values.tolist() == list(range(3, 13))
    chi_square = float(((counts - COUNT / 10) ** 2 / (COUNT / 10)).sum())
    assert chi_square < 27.9  # 0.999 quantile at 9 degrees of freedom


@pytest.mark.parametrize(
    "spec",
    [
        LognormalLength(median=1000, sigma=0.5),
        LognormalLength(median=1000, p99=1000 * math.exp(0.5 * 2.3263478740408408)),
        LognormalLength(mean=1000 * math.exp(0.125), sigma=0.5),
        LognormalLength(mean=1000 * math.exp(0.125), p99=1000 * math.exp(0.5 * 2.3263478740408408)),
    ],
)
def test_a_lognormal_has_the_asked_moments_however_it_is_given(spec: LognormalLength) -> None:
    logs = np.sort(np.log(draw(spec).tokens))
    normal = np.array([(1 + math.erf((x - math.log(1000)) / 0.5 / math.sqrt(2))) / 2 for x in logs])
    distance = np.max(np.abs(np.arange(1, COUNT + 1) / COUNT - normal)) * math.sqrt(COUNT)

    assert distance < 1.95
    assert np.quantile(np.exp(logs), 0.99) == pytest.approx(3200, rel=0.03)


def test_lognormal_bounds_move_lengths_and_say_how_many() -> None:
    lengths = draw(LognormalLength(median=100, sigma=1.0, low=50, high=200))
    share_outside = 2 * (1 - (1 + math.erf(math.log(2) / math.sqrt(2))) / 2)

    assert lengths.tokens.min() == 50
    assert lengths.tokens.max() == 200
    assert lengths.clipped / COUNT == pytest.approx(share_outside, abs=0.01)


def write_azure(path: Path) -> str:
    rows = [f"2023-11-16 18:15:{i:02d}.5,{100 + i},{10 + i}" for i in range(40)]
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]))
    return str(path)


def test_empirical_lengths_come_from_rows_both_columns_from_the_same(tmp_path: Path) -> None:
    spec = EmpiricalLength(write_azure(tmp_path / "a.csv"))
    inputs, outputs = draw(spec).tokens, draw(spec, column=Column.OUTPUT).tokens

    assert np.array_equal(inputs - 100, outputs - 10)
    counts = np.unique(inputs, return_counts=True)[1]
    assert len(counts) == 40
    assert float(((counts - COUNT / 40) ** 2 / (COUNT / 40)).sum()) < 72.1  # 0.999, 39 degrees


@pytest.mark.parametrize(
    "line",
    [
        '{"timestamp": 1, "input": "a", "output": "b", "session_id": "x"}',
        '{"messages": [{"role": "user", "content": "a"}], "max_tokens": 3}',
    ],
)
def test_recorded_prompts_have_no_lengths_to_draw(tmp_path: Path, line: str) -> None:
    file = tmp_path / "s.jsonl"
    file.write_text(line)

    with pytest.raises(ConfigError, match="holds prompts, not lengths"):
        draw(EmpiricalLength(str(file)))


def test_more_lengths_begin_with_the_same_ones() -> None:
    spec = LognormalLength(median=100, sigma=1.0)

    assert draw(spec, 100).tokens.tolist() == draw(spec, 1000).tokens[:100].tolist()
