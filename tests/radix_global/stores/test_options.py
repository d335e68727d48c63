"""Bounds of a directory store that contradict each other are refused."""

from __future__ import annotations

from typing import Any

import pytest

from bana.radix_global.stores.options import DirectoryOptions
from bana.slo.errors import ConfigError

SMALL = {"capacity_bytes": 2**14, "segment_bytes": 2**11}


@pytest.mark.parametrize(
    "bad",
    [
        {"segment_bytes": 128},
        {"capacity_bytes": 5_000},
        {"kept_share": 0.6},
        {"kept_share": -0.1},
        {"kept_share": float("nan")},
        {"writers": 0},
        {"writers": 4},
        {"max_pages": 0},
        {"scan_pages": 0},
        {"max_open_segments": 0},
        {"max_segments": -1},
    ],
)
def test_bounds_that_cannot_be_held_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="allowed"):
        DirectoryOptions(**{**SMALL, **bad})
