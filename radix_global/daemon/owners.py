"""Who holds leases and slots: clients, each proven to be a living process.

    Attach ──▶ ATTACHED ──an event could not be delivered──▶ CUT ──Attach──▶ ATTACHED
                  └── Detach, or proven death ──▶ gone, with all it held

One that is CUT may be frozen: it keeps its leases and slots until it attaches again, ends or dies.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum

from bana.radix_global.keys import Namespace
from bana.radix_global.messages import Event, WantOutcome

# Pages warmed by an administrator are of no known namespace, and are not written anywhere.
UNKNOWN_NAMESPACE = 0


class OwnerState(StrEnum):
    """Whether events reach it."""

    ATTACHED = "attached"
    CUT = "cut"


@dataclasses.dataclass(eq=False, slots=True)
class PendingWant:
    """A prefix that an owner wants in the arena, from its arrival to its release.

    `keys` are the pages under its lease, `places` where each was when it was leased, `slots` theirs
    once they are there. `sent` of them were handed over; after `goal` of them nothing more comes,
    because of `end`, but for the pages `rest` that follow and that nobody has yet. `asked_pages`
    were asked for, `allowed_pages` may be given.
    """

    owner: Owner
    number: int
    keys: list[bytes]
    lease_id: int
    due_s: float
    deadline_s: float
    slots: list[int | None]
    origins: bytearray
    goal: int
    places: bytes
    end: WantOutcome
    asked_pages: int
    allowed_pages: int
    rest: list[bytes] = dataclasses.field(default_factory=list)
    sent: int = 0
    outcome: WantOutcome | None = None

    def foresee_end(self) -> WantOutcome:
        """Why it goes no further where every page that is known now arrives."""
        known = len(self.keys)
        if known == self.asked_pages:
            return WantOutcome.COMPLETE
        return WantOutcome.NO_ROOM if known == self.allowed_pages else WantOutcome.MISSING


@dataclasses.dataclass(eq=False)
class Owner:
    """One client. `name` is what the index knows it by, `tag` its namespace on the tiers."""

    client: bytes
    label: str
    pid: int
    page_bytes: int
    tag: int
    tell: Callable[[Event], None]
    namespace: Namespace | None = None
    route: bytes = b""
    descriptor: int | None = None
    state: OwnerState = OwnerState.ATTACHED
    wants: dict[int, PendingWant] = dataclasses.field(default_factory=dict)
    _leased: dict[bytes, int] = dataclasses.field(default_factory=dict)

    @property
    def leased_pages(self) -> int:
        """How many pages its wants lease; those that they share count once."""
        return len(self._leased)

    def admit(self, keys: Sequence[bytes], room: int) -> int:
        """How many of `keys`, from the first on, it may lease with room for `room` pages more."""
        if len(keys) <= room:
            return len(keys)
        for allowed, key in enumerate(keys):
            if key not in self._leased:
                if room <= 0:
                    return allowed
                room -= 1
        return len(keys)

    def note_leased(self, keys: Iterable[bytes]) -> None:
        """A want more leases these."""
        for key in keys:
            self._leased[key] = self._leased.get(key, 0) + 1

    def note_released(self, keys: Iterable[bytes]) -> None:
        """A want less leases these."""
        for key in keys:
            left = self._leased[key] - 1
            if left:
                self._leased[key] = left
            else:
                del self._leased[key]

    @property
    def name(self) -> str:
        """A word that no other owner has."""
        return self.client.hex()

    def enter(self, namespace: Namespace) -> None:
        """Its keys are of that namespace from now on."""
        self.namespace = namespace
        self.tag = namespace_tag(namespace)


class OwnerBook:
    """The owners by client, by the route of their messages, by the descriptor of their process."""

    def __init__(self) -> None:
        self._by_client: dict[bytes, Owner] = {}
        self._by_route: dict[bytes, Owner] = {}
        self._by_descriptor: dict[int, Owner] = {}

    def __len__(self) -> int:
        return len(self._by_client)

    def __iter__(self) -> Iterator[Owner]:
        return iter(tuple(self._by_client.values()))

    def find_client(self, client: bytes) -> Owner | None:
        """Who has that id."""
        return self._by_client.get(client)

    def find_route(self, route: bytes) -> Owner | None:
        """Who talks on that route."""
        return self._by_route.get(route)

    def find_descriptor(self, descriptor: int) -> Owner | None:
        """Whose process that is."""
        return self._by_descriptor.get(descriptor)

    def descriptors(self) -> tuple[int, ...]:
        """Those of all processes."""
        return tuple(self._by_descriptor)

    def add(self, owner: Owner) -> None:
        """A new owner, whose client is not known yet."""
        self._by_client[owner.client] = owner
        self._by_route[owner.route] = owner
        if owner.descriptor is not None:
            self._by_descriptor[owner.descriptor] = owner

    def remove(self, owner: Owner) -> None:
        """It is gone."""
        del self._by_client[owner.client]
        self._by_route.pop(owner.route, None)
        if owner.descriptor is not None:
            del self._by_descriptor[owner.descriptor]


def namespace_tag(namespace: Namespace) -> int:
    """How tiers mark the pages of a namespace: for lists and clearing, never for reading."""
    return int.from_bytes(namespace.digest()[:4], "big")
