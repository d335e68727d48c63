"""What the front door knows of the store, and what it shows of it."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import zmq.asyncio

from bana.radix_global.admin_messages import (
    AskStatus,
    OwnerStatus,
    PlaceStatus,
    RefusedStatus,
    Status,
    StoreReport,
)
from bana.radix_global.messages import decode_request, encode
from sglang_bana.router.metrics import RouterMetrics
from sglang_bana.router.store_feed import StoreFeed
from sglang_bana.status import StoreStatus

DEADLINE_S = 20.0
REPORT = StoreReport(
    epoch=3,
    pid=4,
    uptime_s=5.0,
    is_recovering=False,
    free_slots=6,
    slots=7,
    slot_bytes=8,
    places=(
        PlaceStatus(0, "arena", 2, 16, 56, {"held_slots": 2, "evicted_pages": 9}),
        PlaceStatus(1, "disk", 3, 24, 99, {"reads_corrupt": 1}, bytes_per_s=1e6),
    ),
    owners=(OwnerStatus("i", 5, "attached", 1, 2, 3, "00000001"),),
    longest_turn_s=0.01,
    pinned_pages=0,
    counts={"published_pages": 11, "refused_clients": 8},
    waiting_pins=4,
    refused=(RefusedStatus("j", 6, "pages of 9 bytes"),),
)


def feed_from(endpoint: str, answers: list[Any], until: Any) -> StoreStatus | None:
    """What a feed says once `until(feed)`, from a daemon that gives `answers` in turn."""

    async def run() -> StoreStatus | None:
        feed = StoreFeed(endpoint)
        with zmq.asyncio.Context() as context, context.socket(zmq.ROUTER) as socket:
            socket.setsockopt(zmq.LINGER, 0)
            socket.bind(endpoint)
            task = asyncio.create_task(feed.run())
            try:
                for answer in answers:
                    route, frame = await asyncio.wait_for(socket.recv_multipart(), DEADLINE_S)
                    assert isinstance(decode_request(frame), AskStatus)
                    await socket.send_multipart([route, answer])
                async with asyncio.timeout(DEADLINE_S):
                    while not until(feed):
                        await asyncio.sleep(0.01)
            finally:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        return feed.status()

    return asyncio.run(run())


def test_the_newest_answer_is_known(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/s"
    seen = feed_from(endpoint, [encode(Status(1, REPORT))], lambda feed: feed.status())
    assert seen is not None
    assert seen.report == REPORT
    assert seen.silent_s < DEADLINE_S


def test_an_answer_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/s"
    answers = [b"\xff\xff", encode(Status(1, REPORT))]
    assert feed_from(endpoint, answers, lambda feed: feed.status()) is not None


def test_without_a_store_nothing_is_asked() -> None:
    feed = StoreFeed("")
    asyncio.run(feed.run())
    assert feed.status() is None


def test_the_store_s_numbers_are_series_of_the_front_door() -> None:
    text = RouterMetrics().render((), StoreStatus(0.5, REPORT)).decode()
    for line in (
        'bana_store{quantity="free_slots"} 6.0',
        'bana_store{quantity="leased_pages"} 2.0',
        'bana_store{quantity="waiting_pins"} 4.0',
        'bana_store{quantity="refused_clients"} 1.0',
        'bana_store_events_total{event="refused_clients"} 8.0',
        'bana_store_events_total{event="published_pages"} 11.0',
        'bana_store_place_held_bytes{place="disk"} 24.0',
        'bana_store_place_size{place="arena",what="held_slots"} 2.0',
        'bana_store_place_events_total{event="reads_corrupt",place="disk"} 1.0',
    ):
        assert line in text, text


def test_without_a_store_there_are_no_series_of_it() -> None:
    assert b"bana_store" not in RouterMetrics().render(())
