"""The daemon without sockets, threads or a clock: messages and outcomes in, events out.

    hear(route, request) ──▶ owners ──▶ floor: wants, slots, writes ──▶ index
    note_reads, note_written, note_news ──────▲        │ orders to reader and writer
    bury, cut, tick ──────────────────────────┘        ▼
                                              outbox: (route, event), to be sent

A message that breaks the rules costs its sender its attachment, and nobody else anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import msgspec

from bana.radix_global.daemon.floor import Floor
from bana.radix_global.daemon.gear import MakeGear, ProcessWatch
from bana.radix_global.daemon.limits import StoreLimits
from bana.radix_global.daemon.owners import Owner, OwnerBook, OwnerState, namespace_tag
from bana.radix_global.daemon.refusals import Refusals
from bana.radix_global.daemon.tier_books import TierBooks
from bana.radix_global.daemon.weather import ReadWeather
from bana.radix_global.index import PrefixIndex
from bana.radix_global.keys import split_keys
from bana.radix_global.messages import (
    PROTOCOL,
    Announce,
    Attach,
    Attached,
    Cancel,
    Detach,
    Enter,
    Event,
    Lost,
    Ping,
    Pong,
    Prefetch,
    Publish,
    Refused,
    Release,
    Request,
    Reserve,
    Return,
    Withdraw,
)
from bana.radix_global.reader.wanting import PageRead
from bana.radix_global.stores.store import HeldPage, Store
from bana.radix_global.writer.jobs import PageWritten
from bana.slo.errors import ConfigError, StoreError

MAX_REMEMBERED_NAMESPACES = 1024


class BookRules(msgspec.Struct, frozen=True):
    """What the books need to know: this life's number, the index's bound, what is granted."""

    epoch: int
    max_pages: int
    limits: StoreLimits


class StoreBooks:
    """All that the daemon knows. `outbox` is emptied by whoever sends; `say` takes log lines."""

    def __init__(
        self,
        rules: BookRules,
        index: PrefixIndex,
        stores: Mapping[int, Store],
        make_gear: MakeGear,
        processes: ProcessWatch,
        say: Callable[[str], None],
    ) -> None:
        self.rules = rules
        self.index = index
        self.counts: Counter[str] = Counter()
        self.tiers = TierBooks(index, rules.max_pages, stores, self.counts)
        self.owners = OwnerBook()
        self.floor: Floor | None = None
        self.outbox: list[tuple[bytes, Event]] = []
        self.weather = ReadWeather()
        self.longest_turn_s = 0.0
        # What the tags of pages mean, as far as anybody said so in this life.
        self.namespaces: dict[int, str] = {}
        self._make_gear = make_gear
        self._processes = processes
        self._say = say
        self.refusals = Refusals(say)

    def open_floor(self, page_bytes: int) -> Floor:
        """The arena, made for such pages if there is none; ConfigError where it cannot be."""
        if self.floor is None:
            gear = self._make_gear(page_bytes)
            limits = self.rules.limits
            self.floor = Floor(
                gear, self.index, self.tiers, limits, self.counts, lambda: self.weather
            )
        if page_bytes > self.floor.layout.slot_bytes:
            raise ConfigError(
                f"pages of {page_bytes} bytes, allowed: <= {self.floor.layout.slot_bytes}, the "
                "slots of this store; set store.slot_bytes to the largest page, and restart it"
            )
        return self.floor

    def hear(self, route: bytes, request: Request, now_s: float) -> None:
        """Take in what came on `route`."""
        if isinstance(request, Attach):
            self._attach(route, request, now_s)
            return
        owner = self.owners.find_route(route)
        if owner is not None and isinstance(request, Detach):
            self.counts["detached"] += 1
            self._remove(owner)
            self.tell(route, Lost(self.rules.epoch))
            return
        if owner is None or owner.state is OwnerState.CUT or self.floor is None:
            self.counts["messages_of_strangers"] += 1
            self.tell(route, Lost(self.rules.epoch))
            return
        try:
            if isinstance(request, Publish):
                owner.tell(self.floor.publish(owner, request, now_s))
            else:
                self._serve(owner, self.floor, request)
        except StoreError as error:
            self.counts["refused_messages"] += 1
            self.cut(route, f"it may not say that: {error}")
            self.tell(route, Lost(self.rules.epoch))

    def bury(self, descriptor: int) -> None:
        """The process behind `descriptor` is proven dead."""
        owner = self.owners.find_descriptor(descriptor)
        if owner is not None:
            self._say(f"{owner.label!r} (pid {owner.pid}) has died")
            self.counts["deaths"] += 1
            self._remove(owner)

    def cut(self, route: bytes, why: str) -> None:
        """The owner on `route` gets no more events until it attaches again."""
        owner = self.owners.find_route(route)
        if owner is None or owner.state is OwnerState.CUT:
            return
        owner.state = OwnerState.CUT
        self.counts["cuts"] += 1
        self._say(f"{owner.label!r} (pid {owner.pid}) is cut off: {why}")
        if self.floor is not None:
            self.floor.wants.cancel_all(owner)

    def note_reads(self, reads: Sequence[PageRead], now_s: float) -> None:
        """What the reader has done."""
        if self.floor is not None and reads:
            self.floor.arrivals.note(reads, now_s)

    def note_written(self, written: Sequence[PageWritten]) -> None:
        """What the writer has done."""
        if self.floor is not None and written:
            self.floor.writes.note(written)

    def note_found(self, tier: int, pages: Sequence[HeldPage]) -> None:
        """These were found on the tier: somebody else may have written what is awaited here."""
        self.tiers.note_found(tier, pages)
        if self.floor is not None:
            self.floor.wants.grow([page.key for page in pages])

    def tick(self, now_s: float) -> None:
        """Do what is due by now."""
        if self.floor is not None:
            self.floor.wants.expire(now_s)
            self.floor.write_what_is_read()

    @property
    def is_busy(self) -> bool:
        """Whether `tick` has more to do at once."""
        return self.floor is not None and self.floor.slots.has_risen

    def next_deadline_s(self) -> float | None:
        """When `tick` has something to do, if nothing else happens."""
        return None if self.floor is None else self.floor.wants.next_deadline_s()

    def tell(self, route: bytes, event: Event) -> None:
        """Have `event` sent."""
        self.outbox.append((route, event))

    def _serve(self, owner: Owner, floor: Floor, request: Request) -> None:
        match request:
            case Ping():
                owner.tell(Pong(request.number, self.rules.epoch, self.weather.tiers))
            case Prefetch():
                floor.wants.add(owner, request)
            case Cancel():
                floor.wants.cancel(owner, request.want)
            case Release():
                floor.wants.release(owner, request.want)
            case Reserve():
                owner.tell(floor.reserve(owner, request.pages))
            case Announce():
                floor.wants.announce(owner, request.number, split_keys(request.keys))
            case Withdraw():
                floor.wants.withdraw(owner, request.number)
            case Return():
                floor.slots.end_reservation(owner.client, request.slots)
            case Enter():
                floor.wants.withdraw_all(owner)
                owner.enter(request.namespace)
                self._remember(owner)
                self._say(
                    f"{owner.label!r} (pid {owner.pid}) moves on to namespace {owner.tag:08x}: "
                    f"{self.namespaces.get(owner.tag, '')}"
                )
            case _:
                raise StoreError(f"{type(request).__name__} is for administrators")

    # Coming and going

    def _attach(self, route: bytes, asked: Attach, now_s: float) -> None:
        try:
            _require_protocol(asked)
            floor = self.open_floor(asked.page_bytes)
            owner = self._admit(route, asked)
        except (ConfigError, StoreError, OSError) as error:
            self.counts["refused_clients"] += 1
            self.refusals.note(asked, str(error), now_s)
            self.tell(route, Refused(str(error)[:4000]))
            return
        self.owners.add(owner)
        self.refusals.forget(owner.client)
        self._remember(owner)
        self.counts["attached"] += 1
        self._say(
            f"{owner.label!r} (pid {owner.pid}) attaches with pages of {owner.page_bytes} bytes of "
            f"namespace {owner.tag:08x}: {self.namespaces.get(owner.tag, '')}"
        )
        kept = tuple(sorted(floor.slots.reserved(owner.client)))
        path, layout = str(floor.gear.arena.path), floor.layout
        owner.tell(Attached(self.rules.epoch, path, layout.slots, layout.slot_bytes, kept))

    def _admit(self, route: bytes, asked: Attach) -> Owner:
        """The owner that `asked` is, new, or one of before with nothing but its kept slots."""
        talking = self.owners.find_route(route)
        if talking is not None and talking.client != asked.client:
            raise StoreError("another client has attached on this connection; open a new one")
        before = self.owners.find_client(asked.client)
        if before is not None:
            return self._readmit(route, asked, before)
        if len(self.owners) >= self.rules.limits.max_owners:
            raise StoreError(
                f"{len(self.owners)} clients are attached, allowed: store.max_owners="
                f"{self.rules.limits.max_owners}; raise it"
            )
        descriptor = self._processes.watch(asked.pid, asked.start_ticks)
        if descriptor is None:
            raise StoreError(
                f"process {asked.pid}, started at {asked.start_ticks}, does not run here; clients "
                "must share the daemon's host and process namespace"
            )
        return self._build_owner(route, asked, descriptor)

    def _readmit(self, route: bytes, asked: Attach, before: Owner) -> Owner:
        if asked.pid != before.pid or self.floor is None:
            raise StoreError(f"this client is process {before.pid}, not {asked.pid}")
        is_same_life = asked.epoch == self.rules.epoch
        kept = frozenset(asked.kept) if is_same_life else frozenset()
        before.state = OwnerState.CUT
        self.floor.let_go(before, kept)
        self.owners.remove(before)
        return self._build_owner(route, asked, before.descriptor)

    def _build_owner(self, route: bytes, asked: Attach, descriptor: int | None) -> Owner:
        owner = Owner(
            client=asked.client,
            label=asked.name,
            pid=asked.pid,
            page_bytes=asked.page_bytes,
            tag=namespace_tag(asked.namespace),
            tell=lambda event: self._tell_owner(owner, event),
            namespace=asked.namespace,
            route=route,
            descriptor=descriptor,
        )
        return owner

    def _tell_owner(self, owner: Owner, event: Event) -> None:
        if owner.state is OwnerState.ATTACHED:
            self.tell(owner.route, event)

    def _remove(self, owner: Owner) -> None:
        # Nobody listens any more.
        owner.state = OwnerState.CUT
        if self.floor is not None:
            self.floor.let_go(owner)
        self.owners.remove(owner)
        if owner.descriptor is not None:
            self._processes.forget(owner.descriptor)

    def _remember(self, owner: Owner) -> None:
        space = owner.namespace
        if space is None or len(self.namespaces) >= MAX_REMEMBERED_NAMESPACES:
            return
        words = (
            space.model,
            space.revision,
            space.dtype,
            f"rank {space.tp_rank} of {space.tp_size}",
            f"layers {space.first_layer} to {space.end_layer}",
            space.weights_epoch and f"weights {space.weights_epoch}",
        )
        self.namespaces[owner.tag] = ", ".join(word for word in words if word)


def _require_protocol(asked: Attach) -> None:
    if asked.protocol != PROTOCOL:
        raise ConfigError(
            f"protocol {asked.protocol}, allowed: {PROTOCOL}; run one version of bana"
        )
