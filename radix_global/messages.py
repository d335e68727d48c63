"""What an instance's client and the store daemon say to each other: one typed frame a message.

    client ──Attach──▶ daemon ──Attached(epoch, arena) | Refused──▶ client
           ──Prefetch──▶      ──Known──▶ ──Arrived…──▶ ──Settled──▶
           ──Release──▶
           ──Reserve──▶       ──Reserved──▶
           ──Publish──▶       ──Published──▶
           ──Announce, Withdraw──▶            pages that it is about to publish
           ──Ping──▶          ──Pong(epoch, tiers)──▶
           ──Detach──▶        ──Lost──▶
           ──anything──▶      ──Lost──▶            not attached here (any more): attach again

Messages are msgpack arrays that begin with their tag. Whoever decodes checks everything that the
schema can say, lengths included, and answers StoreError for the rest: a frame is never trusted.
What administrators ask is in `admin_messages`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, TypeAlias, TypeVar

import msgspec

from bana.radix_global.admin_messages import Answer, Ask
from bana.radix_global.keys import KEY_BYTES, Namespace, count_keys
from bana.radix_global.wire_parts import (
    MAX_BATCH_PAGES,
    ClientId,
    Keys,
    Label,
    Message,
    Number,
    PageBytes,
    SlotNumber,
    Time,
)
from bana.slo.errors import BanaError, StoreError

PROTOCOL = 1
MAX_MESSAGE_BYTES = 4 * 2**20

Batch = Annotated[int, msgspec.Meta(ge=1, le=MAX_BATCH_PAGES)]
Slots = Annotated[tuple[SlotNumber, ...], msgspec.Meta(max_length=MAX_BATCH_PAGES)]
# Any 64 bits; msgspec compares only with what a signed word holds.
Generation = Annotated[int, msgspec.Meta(ge=0)]
Generations = Annotated[tuple[Generation, ...], msgspec.Meta(max_length=MAX_BATCH_PAGES)]
Places = Annotated[bytes, msgspec.Meta(max_length=MAX_BATCH_PAGES)]


class WantOutcome(StrEnum):
    """Why nothing more will arrive for a want; what has arrived stays leased until its release."""

    COMPLETE = "complete"  # every page that was asked for
    MISSING = "missing"  # every page of the known prefix; no place holds the next one
    LATE = "late"  # its deadline has passed
    NO_ROOM = "no_room"  # the arena, the reader or the owner's caps had no room for the next page
    FAILED = "failed"  # no tier could give the next page
    CANCELLED = "cancelled"  # released before it was settled
    LOST = "lost"  # the daemon went away, or never took it: nothing is leased. Clients say it


class Attach(Message, frozen=True, tag="attach"):
    """Begin, or begin anew: whatever this client held before is released.

    `client` names it for its process's life. Except that, of the slots reserved for it under the
    same `epoch`, it keeps those in `kept`: somebody may be writing into them. `epoch` is 0 at
    first. Pages it will publish have `page_bytes` bytes.
    """

    protocol: int
    client: ClientId
    pid: Annotated[int, msgspec.Meta(ge=1, le=2**31)]
    start_ticks: Number
    page_bytes: PageBytes
    namespace: Namespace
    name: Label
    epoch: Number = 0
    kept: Slots = ()


class Enter(Message, frozen=True, tag="enter"):
    """From here on the keys are those of another namespace: the weights have changed."""

    namespace: Namespace


class Detach(Message, frozen=True, tag="detach"):
    """The end: everything is released, and Lost says so. Only when nobody uses a slot of this
    client any more.
    """


class Ping(Message, frozen=True, tag="ping"):
    """Asks for a sign of life."""

    number: Number


class Prefetch(Message, frozen=True, tag="prefetch"):
    """Lease the known prefix of `keys` and bring it into the arena, the first page first.

    `want` is the client's number for it, never used before. The more urgent of two wants has the
    earlier `due_s`; past `deadline_s` it settles with what has arrived. With an `await_until_s`,
    pages that nobody has yet are waited for as well, if somebody has announced them by then. All on
    CLOCK_MONOTONIC.
    """

    want: Number
    keys: Keys
    due_s: Time
    deadline_s: Time
    await_until_s: Time = 0.0

    def __post_init__(self) -> None:
        _require_keys(self.keys)


class Announce(Message, frozen=True, tag="announce"):
    """This client is computing the pages `keys`, in prefix order, and will publish them.

    `number` is the client's for it, never used before.
    """

    number: Number
    keys: Keys

    def __post_init__(self) -> None:
        _require_keys(self.keys)


class Withdraw(Message, frozen=True, tag="withdraw"):
    """Nothing more comes of an announcement; an unknown one is none."""

    number: Number


class Cancel(Message, frozen=True, tag="cancel"):
    """Nothing more is to arrive for the want, whose lease stays; an unknown one is none."""

    want: Number


class Release(Message, frozen=True, tag="release"):
    """End the want and its lease; an unknown one is none."""

    want: Number


class Reserve(Message, frozen=True, tag="reserve"):
    """Ask for slots to write into."""

    pages: Batch


class Publish(Message, frozen=True, tag="publish"):
    """The pages `keys`, in prefix order, are written into `slots` reserved for this client.

    `after` is the key of the page before the first, empty where there is none.
    """

    after: Annotated[bytes, msgspec.Meta(max_length=KEY_BYTES)]
    keys: Keys
    slots: Slots

    def __post_init__(self) -> None:
        _require_keys(self.keys)
        if len(self.after) % KEY_BYTES:
            raise ValueError(f"`after` has {len(self.after)} bytes; send one key or nothing")
        if len(self.keys) != KEY_BYTES * len(self.slots):
            raise ValueError(f"{len(self.slots)} slots for {len(self.keys)} bytes of keys")


class Return(Message, frozen=True, tag="return"):
    """Slots reserved for this client that it will not write into any more."""

    slots: Slots


class Attached(Message, frozen=True, tag="attached"):
    """The client is known; the arena is the file at `arena_path`.

    `epoch` names this life of the daemon. `kept` are the slots still reserved for the client.
    """

    epoch: Number
    arena_path: Annotated[str, msgspec.Meta(max_length=4096)]
    slots: SlotNumber
    slot_bytes: PageBytes
    kept: Slots = ()


class Refused(Message, frozen=True, tag="refused"):
    """Attaching failed; the same again later may not."""

    reason: Annotated[str, msgspec.Meta(max_length=4096)]


class Lost(Message, frozen=True, tag="lost"):
    """The sender of the last message is not attached (any more); events may have been dropped."""

    epoch: Number


class TierWeather(Message, frozen=True):
    """What reading from a tier costs at present: the planner's input. 0 while not measured."""

    place: Annotated[int, msgspec.Meta(ge=1, le=7)]
    name: Label
    bytes_per_s: float
    latency_s: float
    backlog_pages: int
    backlog_bytes: int


Weather = Annotated[tuple[TierWeather, ...], msgspec.Meta(max_length=7)]


class Pong(Message, frozen=True, tag="pong"):
    """A sign of life."""

    number: Number
    epoch: Number
    tiers: Weather


class Known(Message, frozen=True, tag="known"):
    """At once: the mask of places of each page of the want's known prefix.

    `tiers` is what reading costs as the want begins, before its own pages wait to be read; the
    backlog is of pages that are as urgent. So many pages behind the known ones are `coming`. Said
    again when some of those are known.
    """

    want: Number
    places: Places
    tiers: Weather = ()
    coming: Annotated[int, msgspec.Meta(ge=0, le=MAX_BATCH_PAGES)] = 0


class Arrived(Message, frozen=True, tag="arrived"):
    """Pages `first` and on of the want are in the arena, leased and whole.

    `origins` is the place that each came from: 0 was in the arena when it was asked for.
    """

    want: Number
    first: Annotated[int, msgspec.Meta(ge=0, le=MAX_BATCH_PAGES)]
    slots: Slots
    generations: Generations
    origins: Places

    def __post_init__(self) -> None:
        if not len(self.slots) == len(self.generations) == len(self.origins):
            raise ValueError("slots, generations and origins differ in number")


class Settled(Message, frozen=True, tag="settled"):
    """Nothing more will arrive for the want: `pages` did."""

    want: Number
    outcome: WantOutcome
    pages: Annotated[int, msgspec.Meta(ge=0, le=MAX_BATCH_PAGES)]


class Reserved(Message, frozen=True, tag="reserved"):
    """The answer to one Reserve: possibly fewer slots, possibly none."""

    slots: Slots
    generations: Generations

    def __post_init__(self) -> None:
        if len(self.slots) != len(self.generations):
            raise ValueError("slots and generations differ in number")


class Published(Message, frozen=True, tag="published"):
    """The answer to one Publish: `returned` slots hold what is known already, or had no room.

    They are reserved for the client as before.
    """

    taken: Annotated[int, msgspec.Meta(ge=0, le=MAX_BATCH_PAGES)]
    returned: Slots


Request: TypeAlias = (
    Attach
    | Enter
    | Detach
    | Ping
    | Prefetch
    | Cancel
    | Release
    | Reserve
    | Publish
    | Return
    | Announce
    | Withdraw
    | Ask
)
Event: TypeAlias = (
    Attached | Refused | Lost | Pong | Known | Arrived | Settled | Reserved | Published | Answer
)

_M = TypeVar("_M")
_ENCODER = msgspec.msgpack.Encoder()
_REQUESTS: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_EVENTS: msgspec.msgpack.Decoder[Event] = msgspec.msgpack.Decoder(Event)


def encode(message: Request | Event) -> bytes:
    """One frame."""
    return _ENCODER.encode(message)


def decode_request(frame: bytes) -> Request:
    """What a client says; StoreError for anything else."""
    return _decode(_REQUESTS, frame)


def decode_event(frame: bytes) -> Event:
    """What the daemon says; StoreError for anything else."""
    return _decode(_EVENTS, frame)


def _decode(decoder: msgspec.msgpack.Decoder[_M], frame: bytes) -> _M:
    if len(frame) > MAX_MESSAGE_BYTES:
        raise StoreError(f"a message of {len(frame)} bytes, allowed: {MAX_MESSAGE_BYTES}; split it")
    try:
        return decoder.decode(frame)
    except (msgspec.MsgspecError, BanaError, RecursionError) as error:
        raise StoreError(f"no message of this protocol: {error}; update both ends") from error


def _require_keys(keys: bytes) -> None:
    if not keys:
        raise ValueError("no keys; name at least one page")
    if count_keys(keys) > MAX_BATCH_PAGES:
        raise ValueError(f"{count_keys(keys)} keys, allowed: {MAX_BATCH_PAGES}; split them")
