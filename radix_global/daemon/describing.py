"""What the daemon says of itself."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from bana.radix_global.admin_messages import (
    OwnerStatus,
    PlaceStatus,
    RefusedStatus,
    StoreReport,
)
from bana.radix_global.daemon.books import StoreBooks
from bana.radix_global.daemon.desk import Desk
from bana.radix_global.daemon.floor import Floor
from bana.radix_global.daemon.owners import Owner
from bana.radix_global.daemon.slots import SlotState
from bana.radix_global.daemon.works import Tier, Works

ARENA_NAME = "arena"


class Life(msgspec.Struct, frozen=True):
    """Which process this is, and since when."""

    pid: int
    began_s: float


def describe_store(
    life: Life,
    books: StoreBooks,
    desk: Desk,
    works: Works,
    tiers: Mapping[int, Tier],
    now_s: float,
) -> StoreReport:
    """The whole store, `now_s`. O(owners)."""
    floor = books.floor
    places = (_describe_arena(books, works), *_describe_tiers(books, works, tiers))
    return StoreReport(
        epoch=books.rules.epoch,
        pid=life.pid,
        uptime_s=now_s - life.began_s,
        is_recovering=desk.is_recovering,
        free_slots=floor.slots.count(SlotState.FREE) if floor else 0,
        slots=floor.layout.slots if floor else 0,
        slot_bytes=floor.layout.slot_bytes if floor else 0,
        places=places,
        owners=tuple(_describe_owner(owner, floor) for owner in books.owners),
        longest_turn_s=books.longest_turn_s,
        pinned_pages=desk.pinned_pages,
        waiting_pins=desk.waiting_pins,
        refused=tuple(
            RefusedStatus(refusal.name, refusal.pid, refusal.reason)
            for refusal in books.refusals.list(now_s)
        ),
        counts=dict(books.counts),
    )


def _describe_arena(books: StoreBooks, works: Works) -> PlaceStatus:
    floor, held = books.floor, books.index.counts().places[0]
    counts: dict[str, int] = {}
    if floor is not None:
        counts = {f"{state.name.lower()}_slots": floor.slots.count(state) for state in SlotState}
        counts["evicted_pages"] = floor.slots.evicted_pages
        counts["wanted_pages_being_read"] = len(floor.readings)
        counts["pages_being_written"] = len(floor.writes)
    return PlaceStatus(
        place=0,
        name=ARENA_NAME,
        pages=held.pages,
        held_bytes=held.size_bytes,
        capacity_bytes=floor.layout.file_bytes if floor else works.arena_bytes,
        counts=counts,
    )


def _describe_tiers(
    books: StoreBooks, works: Works, tiers: Mapping[int, Tier]
) -> list[PlaceStatus]:
    held = books.index.counts().places
    reads = {report.tier: report for report in works.read_reports()}
    writes = {report.tier: report for report in works.write_reports()}
    described = []
    for number, tier in tiers.items():
        stats = tier.store.stats()
        counts = dict(stats.counts)
        read, written = reads.get(number), writes.get(number)
        if read is not None:
            counts |= {f"reads_{name}": n for name, n in read.outcomes.items()}
            counts |= {"read_bytes": read.read_bytes, "overdue_reads": read.overdue_pages}
        if written is not None:
            counts |= {f"writes_{name}": n for name, n in written.outcomes.items()}
            counts |= {"written_bytes": written.written_bytes}
            counts["write_backlog_bytes"] = written.backlog_bytes
        described.append(
            PlaceStatus(
                place=number,
                name=tier.name,
                pages=held[number].pages,
                held_bytes=stats.held_bytes,
                capacity_bytes=stats.capacity_bytes,
                counts=counts,
                bytes_per_s=(read.bandwidth_bytes_per_s if read else None) or 0.0,
                latency_s=(read.latency_s if read else None) or 0.0,
                backlog_pages=read.backlog_pages if read else 0,
                backlog_bytes=read.backlog_bytes if read else 0,
            )
        )
    return described


def _describe_owner(owner: Owner, floor: Floor | None) -> OwnerStatus:
    return OwnerStatus(
        name=owner.label,
        pid=owner.pid,
        state=owner.state,
        wants=len(owner.wants),
        leased_pages=owner.leased_pages,
        reserved_slots=len(floor.slots.reserved(owner.client)) if floor else 0,
        namespace=f"{owner.tag:08x}",
    )
