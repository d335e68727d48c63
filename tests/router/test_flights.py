"""A request in flight is cut loose once, whatever else wants to cut it."""

from __future__ import annotations

import asyncio

import pytest

from sglang_bana.router.endpoints import find_endpoint
from sglang_bana.router.flights import Cut, Flight
from sglang_bana.router.keys import Grant


def _flight() -> Flight:
    endpoint = find_endpoint("/generate")
    assert endpoint is not None
    return Flight("id", endpoint, Grant(), 0.0, 0.0)


async def _cut(flight: Flight, *reasons: Cut) -> None:
    async with asyncio.timeout(30.0) as scope:
        flight.scope = scope
        try:
            first, *later = reasons
            flight.cut_loose(first)
            for why in later:
                # By then the scope is expiring, but the attempt has not noticed yet.
                asyncio.get_running_loop().call_soon(flight.cut_loose, why)
            await asyncio.sleep(30.0)
        finally:
            flight.scope = None


@pytest.mark.parametrize(
    ("reasons", "cut"),
    [
        ([Cut.MOVED], Cut.MOVED),
        ([Cut.MOVED, Cut.STALL], Cut.MOVED),
        ([Cut.MOVED, Cut.DRAIN], Cut.DRAIN),
        ([Cut.DRAIN, Cut.CRASHED], Cut.DRAIN),
    ],
)
def test_the_first_reason_counts_unless_the_door_closes(reasons: list[Cut], cut: Cut) -> None:
    flight = _flight()
    with pytest.raises(TimeoutError):
        asyncio.run(_cut(flight, *reasons))
    assert flight.cut is cut


def test_between_attempts_only_draining_counts() -> None:
    flight = _flight()
    flight.cut_loose(Cut.STALL)
    assert flight.cut is None
    # A request that was moved waits for another instance while the door closes.
    flight.cut = Cut.MOVED
    flight.cut_loose(Cut.DRAIN)
    assert flight.cut is Cut.DRAIN
