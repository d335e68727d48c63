"""How the state of a store is put into a line."""

from __future__ import annotations

import msgspec

from bana.cli.status import describe_handoff, describe_refusals, describe_store
from bana.radix_global.admin_messages import PlaceStatus, RefusedStatus, StoreReport
from sglang_bana.status import HandoffStatus, StoreStatus

REPORT = StoreReport(
    epoch=1,
    pid=2,
    uptime_s=90.0,
    is_recovering=False,
    free_slots=1,
    slots=2,
    slot_bytes=3,
    places=(PlaceStatus(0, "arena", 5, 2**29, 2**30, {}), PlaceStatus(1, "disk", 5, 0, 2**31, {})),
    owners=(),
    longest_turn_s=0.0,
    pinned_pages=0,
    counts={},
)


def test_a_store_is_one_line() -> None:
    line = describe_store(StoreStatus(0.2, REPORT))
    assert line == "store: up 90 s, 0 clients, arena 0.5 of 1.0 GiB, disk 0.0 of 2.0 GiB"


def test_a_store_that_is_silent_or_recovers_says_so() -> None:
    recovering = msgspec.structs.replace(REPORT, is_recovering=True)
    line = describe_store(StoreStatus(31.0, recovering))
    assert "still looking through its tiers" in line
    assert "silent for 31 s" in line


def test_hand_offs_are_one_line() -> None:
    told = HandoffStatus(7, {"done": 5, "failed": 1}, {"short_prompt": 3, "retry": 1})
    line = describe_handoff(told)
    assert line == (
        "hand-off: 7 prompts (5 done, 1 failed); not handed off: 1 retry, 3 short_prompt"
    )
    assert describe_handoff(HandoffStatus(1, {}, {})) == "hand-off: 1 prompts; not handed off: none"


def test_whoever_is_refused_is_a_warning() -> None:
    refused = (RefusedStatus("i0/0", 7, "pages of 9 bytes; set store.slot_bytes"),)
    status = StoreStatus(0.2, msgspec.structs.replace(REPORT, refused=refused))
    assert describe_refusals(status) == [
        "warning: the store refuses i0/0: pages of 9 bytes; set store.slot_bytes"
    ]
    assert describe_refusals(StoreStatus(0.2, REPORT)) == []
