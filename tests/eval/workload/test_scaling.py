from __future__ import annotations

import pytest

from bana.eval.workload.scaling import scale_block, scale_length
from bana.slo.errors import ConfigError


@pytest.mark.parametrize(
    ("tokens", "scale", "scaled"), [(1000, 0.07, 70), (10, 0.25, 3), (3, 0.001, 1), (7, 3.0, 21)]
)
def test_lengths_are_rounded_up(tokens: int, scale: float, scaled: int) -> None:
    assert scale_length(tokens, scale) == scaled


def test_a_block_is_scaled_where_it_stays_whole() -> None:
    assert scale_block(512, 0.125) == 64
    assert scale_block(100, 0.07) == 7
    with pytest.raises(ConfigError, match="not whole"):
        scale_block(512, 0.1)
