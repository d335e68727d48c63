"""A store's report as routing sees it."""

from __future__ import annotations

import pytest

from bana.radix_global.admin_messages import PlaceStatus, StoreReport
from bana.slo.routing import StoreView
from sglang_bana.router.store_view import view_store


def place(number: int, pages: int, **more: float) -> PlaceStatus:
    return PlaceStatus(number, f"p{number}", pages, 0, 0, {}, **more)  # type: ignore[arg-type]


def report(*places: PlaceStatus) -> StoreReport:
    return StoreReport(
        epoch=1,
        pid=1,
        uptime_s=1.0,
        is_recovering=False,
        free_slots=0,
        slots=10,
        slot_bytes=4096,
        places=places,
        owners=(),
        longest_turn_s=0.0,
        pinned_pages=0,
        counts={},
    )


def test_tiers_are_summed_up() -> None:
    told = report(
        place(0, 25),
        place(1, 100, bytes_per_s=1e6, latency_s=0.2, backlog_bytes=10),
        place(2, 40, bytes_per_s=2e6, latency_s=0.1, backlog_bytes=20),
        place(3, 90),
    )
    assert view_store(told, 640, 1024.0) == StoreView(640, 0.75, 1024.0, 3e6, 0.1, 30)


@pytest.mark.parametrize("places", [(place(0, 25),), (place(0, 25), place(1, 20)), ()], ids=len)
def test_what_the_arena_holds_need_not_be_read(places: tuple[PlaceStatus, ...]) -> None:
    assert view_store(report(*places), 640, 1024.0).tier_share == 0.0
