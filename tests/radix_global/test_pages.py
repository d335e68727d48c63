"""Records refuse what an index could not keep."""

from __future__ import annotations

import pytest

from bana.radix_global.pages import Chain, IndexLimits
from bana.slo.errors import ConfigError, StoreError

A, B = b"a" * 16, b"b" * 16


@pytest.mark.parametrize(
    ("keys", "page_bytes", "after"),
    [
        (A + A, 1, b""),
        (B + A, 1, A),
        (A[:8], 1, b""),
        (A, 1, B[:8]),
        (A, 1, B + b"c" * 16),
        (A, 0, b""),
        (A, 2**31, b""),
    ],
)
def test_a_chain_that_cannot_be_is_refused(keys: bytes, page_bytes: int, after: bytes) -> None:
    with pytest.raises(StoreError):
        Chain(keys=keys, page_bytes=page_bytes, after=after)


@pytest.mark.parametrize(
    ("max_pages", "tiers", "max_leases"),
    [(0, 1, 1), (2**31, 1, 1), (1, -1, 1), (1, 8, 1), (1, 1, 0)],
)
def test_limits_out_of_range_are_refused(max_pages: int, tiers: int, max_leases: int) -> None:
    with pytest.raises(ConfigError, match="allowed"):
        IndexLimits(max_pages=max_pages, tiers=tiers, max_leases=max_leases)
