"""What an administrator asks the store daemon, and its answers; each repeats the asker's number.

Questions need no key: whoever reaches the private socket may ask them. What changes or loads
something carries the run's admin key, and says first what it would do (`Mode.PLAN`).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, TypeAlias

import msgspec

from bana.radix_global.wire_parts import Key, Keys, Label, Message, Number, Record, Time

MAX_LISTED_NAMESPACES = 1024

Secret = Annotated[str, msgspec.Meta(max_length=256)]
# The first four bytes of a namespace's digest, as a number.
NamespaceTag = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]


class Mode(StrEnum):
    """Whether to do it or only to say what would be done."""

    PLAN = "plan"
    CARRY_OUT = "carry_out"


class AskStatus(Message, frozen=True, tag="status?"):
    """How is the store?"""

    number: Number


class AskNamespaces(Message, frozen=True, tag="ls?"):
    """What does each namespace hold?"""

    number: Number


class AskPage(Message, frozen=True, tag="inspect?"):
    """What is known of one page?"""

    number: Number
    key: Key


class AskClear(Message, frozen=True, tag="clear?"):
    """Give up all pages that nobody uses, or those of one namespace, in every place.

    With `older_s`, only those that have been in their place for longer.
    """

    number: Number
    secret: Secret
    mode: Mode
    namespace: NamespaceTag | None = None
    older_s: Time | None = None


class AskWarm(Message, frozen=True, tag="warm?"):
    """Bring a prefix into the arena; answered when it is there, or at the deadline."""

    number: Number
    secret: Secret
    mode: Mode
    keys: Keys
    timeout_s: Time


class AskPin(Message, frozen=True, tag="pin?"):
    """Bring a prefix into the arena and keep it there until it is unpinned."""

    number: Number
    secret: Secret
    mode: Mode
    keys: Keys
    timeout_s: Time


class AskUnpin(Message, frozen=True, tag="unpin?"):
    """End the pins whose prefix ends at `key`, all of them without one."""

    number: Number
    secret: Secret
    mode: Mode
    key: Annotated[bytes, msgspec.Meta(max_length=16)] = b""


class AskVerify(Message, frozen=True, tag="verify?"):
    """Read every page of every tier at a bounded rate, and drop those that are bad."""

    number: Number
    secret: Secret
    mode: Mode
    bytes_per_s: Annotated[float, msgspec.Meta(gt=0, le=1e12)]


class PlaceStatus(Record, frozen=True):
    """One place: what the index believes and, of a tier, what the store itself says."""

    place: int
    name: Label
    pages: int
    held_bytes: int
    capacity_bytes: int
    counts: Mapping[str, int]
    bytes_per_s: float = 0.0
    latency_s: float = 0.0
    backlog_pages: int = 0
    backlog_bytes: int = 0


class RefusedStatus(Record, frozen=True):
    """A client that asks to be attached and may not be: `reason` says what to change."""

    name: str
    pid: int
    reason: str


class OwnerStatus(Record, frozen=True):
    """One attached client, or `state` why it is not served."""

    name: str
    pid: int
    state: str
    wants: int
    leased_pages: int
    reserved_slots: int
    namespace: str


class StoreReport(Record, frozen=True):
    """The whole store; `counts` only grow, and count pages unless their names say otherwise.

    `waiting_pins`, of an earlier life, are to be made again once their pages are found.
    `longest_turn_s` is how long the daemon's thread was away at most from what was waiting for it.
    """

    epoch: Number
    pid: int
    uptime_s: float
    is_recovering: bool
    free_slots: int
    slots: int
    slot_bytes: int
    places: tuple[PlaceStatus, ...]
    owners: tuple[OwnerStatus, ...]
    longest_turn_s: float
    pinned_pages: int
    counts: Mapping[str, int]
    waiting_pins: int = 0
    refused: tuple[RefusedStatus, ...] = ()


class Status(Message, frozen=True, tag="status"):
    """How the store is."""

    number: Number
    report: StoreReport


class NamespaceRow(Record, frozen=True):
    """What one namespace holds in one place; `name` is empty for one that nobody here uses."""

    namespace: NamespaceTag
    name: str
    place: int
    pages: int
    size_bytes: int


class Namespaces(Message, frozen=True, tag="ls"):
    """Every namespace in every place, the largest first; `omitted` rows would not fit."""

    number: Number
    rows: tuple[NamespaceRow, ...]
    omitted: int


class PageFacts(Message, frozen=True, tag="inspect"):
    """One page; nothing but the number where it is not known."""

    number: Number
    is_known: bool
    parent: bytes = b""
    places: tuple[str, ...] = ()
    size_bytes: int = 0
    children: int = 0
    leases: int = 0
    slot: int | None = None
    generation: int | None = None
    reads: int = 0


class Done(Message, frozen=True, tag="done"):
    """What an order did, or would do: pages and bytes by place or by outcome."""

    number: Number
    mode: Mode
    pages: Mapping[str, int]
    size_bytes: int
    remark: str = ""


class Denied(Message, frozen=True, tag="denied"):
    """It was not done, and why."""

    number: Number
    reason: str


Ask: TypeAlias = (
    AskStatus | AskNamespaces | AskPage | AskClear | AskWarm | AskPin | AskUnpin | AskVerify
)
Answer: TypeAlias = Status | Namespaces | PageFacts | Done | Denied
