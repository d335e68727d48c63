"""What a client believes and what it has to say, without sockets, threads or a clock.

      take_slots        publish             Published
stock ─────────▶ taken ─────────▶ in question ─────────▶ the store's, or back in stock
  ▲ Reserved       └── give_back ──▶ stock, or Return

Everything here is bounded: wants by `max_wants`, slots by what the daemon reserves, what is not
sent yet by `max_unsent`. Past that the connection counts as lost, which empties all of it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

import msgspec

from bana.radix_global.client_settings import ClientSettings
from bana.radix_global.keys import KEY_BYTES, Namespace
from bana.radix_global.link import Slot, Want
from bana.radix_global.messages import (
    PROTOCOL,
    Announce,
    Arrived,
    Attach,
    Attached,
    Cancel,
    Enter,
    Event,
    Known,
    Ping,
    Pong,
    Prefetch,
    Publish,
    Published,
    Release,
    Request,
    Reserve,
    Reserved,
    Return,
    Settled,
    TierWeather,
    WantOutcome,
    Withdraw,
)
from bana.radix_global.wire_parts import MAX_BATCH_PAGES

LATEST_S = 1e12


class ClientBook:
    """Wants, slots and messages of one client; one thread at a time."""

    def __init__(self, settings: ClientSettings, client_id: bytes) -> None:
        self._settings = settings
        self._client_id = client_id
        self._namespace = self._told = settings.namespace
        self.counts: Counter[str] = Counter()
        self.tiers: tuple[TierWeather, ...] = ()
        self.epoch = 0
        self.is_attached = False
        self._unsent: deque[Request] = deque()
        self._wants: dict[int, Want] = {}
        self._next_want = 0
        self._announcements = 0
        self._stock: deque[Slot] = deque()
        self._taken: dict[int, Slot] = {}
        self._in_question: deque[tuple[Slot, ...]] = deque()
        self._is_reserving = False
        self._reserve_after_s = 0.0
        self._ping_after_s = 0.0
        self._pings = 0

    # Coming and going

    def describe_self(self) -> Attach:
        """The first message of a connection."""
        settings = self._settings
        self._told = self._namespace
        return Attach(
            protocol=PROTOCOL,
            client=self._client_id,
            pid=settings.pid,
            start_ticks=settings.start_ticks,
            page_bytes=settings.page_bytes,
            namespace=self._namespace,
            name=settings.name,
            epoch=self.epoch,
            kept=tuple(self._taken),
        )

    def note_attached(self, event: Attached) -> None:
        """A connection stands; slots taken before it count on only where the daemon kept them."""
        kept = set(event.kept) if event.epoch == self.epoch else set()
        self._taken = {number: slot for number, slot in self._taken.items() if number in kept}
        self.epoch = event.epoch
        self.is_attached = True
        # Given back while the connection was made, when nobody could be told.
        orphans = kept - self._taken.keys()
        if orphans:
            self._say(Return(tuple(sorted(orphans))))
        self.counts["attached"] += 1
        if self._namespace != self._told:
            self._say(Enter(self._namespace))

    def lose(self) -> bool:
        """The connection is gone: nothing is leased any more; whether any want was hit."""
        was_hit = bool(self._wants)
        for want in self._wants.values():
            want.note_settled(WantOutcome.LOST)
        self.counts["lost_wants"] += len(self._wants)
        self.counts["lost"] += self.is_attached
        self.is_attached = self._is_reserving = False
        self._wants.clear()
        self._unsent.clear()
        self._stock.clear()
        self._in_question.clear()
        self.tiers = ()
        return was_hit

    # What the engine asks for

    def prefetch(
        self, keys: bytes, due_s: float, deadline_s: float, await_until_s: float = 0.0
    ) -> Want:
        """See StoreLink."""
        self._next_want += 1
        want = Want(self._next_want, len(keys) // KEY_BYTES)
        request = self._build_prefetch(want, keys, (due_s, deadline_s, await_until_s))
        if request is None:
            want.note_settled(WantOutcome.LOST)
            return want
        self._wants[want.number] = want
        self.counts["prefetches"] += 1
        self._say(request)
        return want

    def announce(self, keys: bytes) -> int:
        """See StoreLink."""
        self._announcements += 1
        is_sound = 0 < len(keys) <= KEY_BYTES * MAX_BATCH_PAGES and len(keys) % KEY_BYTES == 0
        if self.is_attached and is_sound:
            self.counts["announced_pages"] += len(keys) // KEY_BYTES
            self._say(Announce(self._announcements, bytes(keys)))
        return self._announcements

    def withdraw(self, number: int) -> None:
        """See StoreLink."""
        if self.is_attached:
            self._say(Withdraw(number))

    def cancel(self, want: Want) -> None:
        """See StoreLink."""
        if self._wants.get(want.number) is want and want.outcome is None:
            want.note_settled(WantOutcome.CANCELLED)
            self._say(Cancel(want.number))

    def release(self, want: Want) -> None:
        """See StoreLink."""
        if self._wants.pop(want.number, None) is want:
            want.note_settled(WantOutcome.CANCELLED)
            self._say(Release(want.number))

    def take_slots(self, count: int) -> tuple[Slot, ...] | None:
        """See StoreLink."""
        if not 0 < count <= len(self._stock):
            self.counts["no_slots"] += 1
            return None
        slots = tuple(self._stock.popleft() for _ in range(count))
        self._taken.update((slot.number, slot) for slot in slots)
        return slots

    def give_back(self, slots: Sequence[Slot]) -> None:
        """See StoreLink."""
        self._stock.extend(self._take_back(slots))
        self._return_surplus()

    def publish(self, after: bytes, keys: bytes, slots: Sequence[Slot]) -> None:
        """See StoreLink."""
        own = self._take_back(slots)
        is_whole = len(own) == len(slots) and len(keys) == KEY_BYTES * len(own)
        is_sound = 0 < len(own) <= MAX_BATCH_PAGES and len(after) in (0, KEY_BYTES)
        if not (is_whole and is_sound):
            # What was written before the store was lost, or cannot be what its caller means.
            self.counts["dropped_pages"] += len(slots)
            self._stock.extend(own)
            return
        self._in_question.append(own)
        self._say(Publish(after, bytes(keys), tuple(slot.number for slot in own)))

    def enter(self, namespace: Namespace) -> None:
        """See StoreLink."""
        self._namespace = namespace
        if self.is_attached:
            self._say(Enter(namespace))

    # What the daemon says

    def note_event(self, event: Event) -> bool:
        """Take it in; True where a want went on."""
        match event:
            case Known() | Arrived() | Settled():
                return self._note_want(event)
            case Reserved():
                self._is_reserving = False
                if len(event.slots) < self._settings.stock_slots // 2:
                    self.counts["short_reserves"] += 1
                pairs = zip(event.slots, event.generations, strict=True)
                self._stock.extend(Slot(number, raised, self.epoch) for number, raised in pairs)
            case Published():
                self._note_published(event)
            case Pong():
                self.tiers = event.tiers
            case _:
                self.counts["strange_events"] += 1
        return False

    @property
    def unsent(self) -> int:
        """How many messages wait to be sent."""
        return len(self._unsent)

    def take_unsent(self, now_s: float) -> list[Request] | None:
        """What is to be sent now, in order; None where too much has piled up."""
        if len(self._unsent) > self._settings.max_unsent:
            self.counts["overflows"] += 1
            return None
        if self.is_attached:
            self._ask_for_slots(now_s)
            self._ask_for_life(now_s)
        requests = list(self._unsent)
        self._unsent.clear()
        return requests

    def next_wake_s(self) -> float:
        """When `take_unsent` has something to say of its own accord."""
        is_short = len(self._stock) < self._low_water()
        if is_short and not self._is_reserving:
            return min(self._ping_after_s, self._reserve_after_s)
        return self._ping_after_s

    def _note_want(self, event: Known | Arrived | Settled) -> bool:
        want = self._wants.get(event.want)
        if want is None:
            # Released meanwhile.
            return False
        match event:
            case Known():
                want.note_known(event.places, event.tiers, event.coming)
                if event.tiers:
                    self._note_speeds(event.tiers)
            case Arrived():
                self.counts["arrived_pages"] += len(event.slots)
                # What was on its way when it was cancelled is not used.
                is_over = want.outcome is WantOutcome.CANCELLED
                if not is_over and not want.note_arrived(event, self.epoch):
                    self.counts["strange_events"] += 1
            case Settled():
                self.counts[f"settled_{event.outcome}"] += 1
                want.note_settled(event.outcome)
        return True

    def _note_speeds(self, heard: tuple[TierWeather, ...]) -> None:
        """Newer than the last sign of life; the backlogs are those of one want alone."""
        backlogs = {tier.place: (tier.backlog_pages, tier.backlog_bytes) for tier in self.tiers}
        self.tiers = tuple(
            msgspec.structs.replace(tier, backlog_pages=pages, backlog_bytes=size)
            for tier in heard
            for pages, size in (backlogs.get(tier.place, (0, 0)),)
        )

    def _note_published(self, event: Published) -> None:
        if not self._in_question:
            self.counts["strange_events"] += 1
            return
        asked = {slot.number: slot for slot in self._in_question.popleft()}
        self.counts["published_pages"] += event.taken
        self.counts["returned_pages"] += len(event.returned)
        self._stock.extend(asked[number] for number in event.returned if number in asked)
        self._return_surplus()

    def _build_prefetch(
        self, want: Want, keys: bytes, times_s: tuple[float, float, float]
    ) -> Prefetch | None:
        if not self.is_attached:
            return None
        is_sound = 0 < want.asked_pages <= MAX_BATCH_PAGES and len(keys) % KEY_BYTES == 0
        if not is_sound or not all(0 <= time_s <= LATEST_S for time_s in times_s):
            self.counts["unsound_prefetches"] += 1
            return None
        if len(self._wants) >= self._settings.max_wants:
            self.counts["too_many_wants"] += 1
            return None
        return Prefetch(want.number, bytes(keys), *times_s)

    def _take_back(self, slots: Sequence[Slot]) -> tuple[Slot, ...]:
        """Those of `slots` that were taken and are still reserved under this connection."""
        known = []
        for slot in slots:
            if self._taken.get(slot.number) == slot:
                known.append(self._taken.pop(slot.number))
        # While the store is away nobody may put them in stock; the daemon frees what is not kept.
        return tuple(known) if self.is_attached else ()

    def _return_surplus(self) -> None:
        surplus = len(self._stock) - 2 * self._settings.stock_slots
        if surplus > 0:
            self._say(Return(tuple(self._stock.pop().number for _ in range(surplus))))

    def _low_water(self) -> int:
        return (self._settings.stock_slots + 1) // 2

    def _ask_for_slots(self, now_s: float) -> None:
        is_due = now_s >= self._reserve_after_s and not self._is_reserving
        if is_due and len(self._stock) < self._low_water():
            self._is_reserving = True
            self._reserve_after_s = now_s + self._settings.reserve_retry_s
            self._say(Reserve(self._settings.stock_slots - len(self._stock)))

    def _ask_for_life(self, now_s: float) -> None:
        if now_s >= self._ping_after_s:
            self._ping_after_s = now_s + self._settings.ping_interval_s
            self._pings += 1
            self._say(Ping(self._pings))

    def _say(self, request: Request) -> None:
        self._unsent.append(request)
