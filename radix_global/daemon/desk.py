"""Answers administrators: what the store holds, and orders that clear, warm, pin or verify.

Orders carry the run's admin key. Those that take long answer when they are done; the asker may
have gone by then, which stops nothing.
"""

from __future__ import annotations

import hmac
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import msgspec

from bana.radix_global.admin_messages import (
    MAX_LISTED_NAMESPACES,
    Answer,
    Ask,
    AskClear,
    AskNamespaces,
    AskPage,
    AskPin,
    AskStatus,
    AskUnpin,
    AskVerify,
    AskWarm,
    Denied,
    Done,
    Mode,
    NamespaceRow,
    Namespaces,
    PageFacts,
)
from bana.radix_global.daemon.books import StoreBooks
from bana.radix_global.daemon.chores import (
    ChoreDone,
    CountPages,
    Gone,
    News,
    Refreshed,
    Sweep,
    TierChores,
    VerifyPages,
)
from bana.radix_global.daemon.pin_desk import PinDesk
from bana.radix_global.daemon.slots import Selection
from bana.radix_global.daemon.surveys import ArenaClearing, Surveys
from bana.radix_global.stores.store import ReadOutcome, WriteOutcome
from bana.slo.errors import StoreError

Reply = Callable[[Answer], None]
Describe = Callable[[int], Answer]


class DeskRules(msgspec.Struct, frozen=True):
    """The key that orders must carry, and what places are called, the arena first."""

    secret: str
    place_names: tuple[str, ...]


class Desk:
    """One daemon's administration. `describe(number)` is its status."""

    def __init__(
        self,
        rules: DeskRules,
        books: StoreBooks,
        chores: Sequence[TierChores],
        describe: Describe,
        pins: PinDesk,
    ) -> None:
        self._rules = rules
        self._books = books
        self._describe = describe
        self._surveys = Surveys(chores)
        self._whole: dict[int, bool] = {each.tier: False for each in chores}
        self._pins = pins
        self._clearing: ArenaClearing | None = None
        self._now_s = 0.0

    @property
    def is_recovering(self) -> bool:
        """Whether some tier has not been looked through since the start."""
        return not all(self._whole.values())

    @property
    def is_busy(self) -> bool:
        """Whether `tick` has something to do at once."""
        if not self.is_recovering and self._pins.is_busy:
            return True
        return self._clearing is not None and self._clearing.is_busy

    @property
    def pinned_pages(self) -> int:
        """How many pages are kept in the arena by pins."""
        return self._pins.pinned_pages

    @property
    def waiting_pins(self) -> int:
        """How many pins of an earlier life are to be made again."""
        return self._pins.waiting_pins

    def ask(self, route: bytes, ask: Ask, now_s: float) -> None:
        """Answer `ask`, now or when it is done."""
        self._now_s = now_s

        def reply(answer: Answer) -> None:
            self._books.tell(route, answer)

        try:
            self._check(ask)
            self._answer(ask, reply)
        except StoreError as error:
            reply(Denied(ask.number, str(error)))

    def note_news(self, news: News) -> None:
        """What a tier's chores have found or done."""
        match news:
            case Refreshed():
                self._books.tiers.note_lost(news.tier, news.lost)
                self._books.note_found(news.tier, news.found)
                self._whole[news.tier] = self._whole[news.tier] or news.is_whole
            case Gone():
                self._books.tiers.note_lost(news.tier, news.keys)
            case ChoreDone():
                self._surveys.note(news)

    def tick(self, now_s: float) -> None:
        """Go on with what is done in steps."""
        if self._clearing is not None:
            self._clearing.step()
        self._pins.tick(now_s, is_whole=not self.is_recovering)

    def _check(self, ask: Ask) -> None:
        if isinstance(ask, AskStatus | AskNamespaces | AskPage):
            return
        secret = self._rules.secret
        if not secret or not hmac.compare_digest(ask.secret.encode(), secret.encode()):
            raise StoreError(
                "the admin key is wrong; run the command as the user and in the run directory of "
                "the daemon"
            )

    def _answer(self, ask: Ask, reply: Reply) -> None:
        match ask:
            case AskStatus():
                reply(self._describe(ask.number))
            case AskNamespaces():
                self._surveys.begin(CountPages, lambda parts: reply(self._list(ask, parts)))
            case AskPage():
                reply(self._inspect(ask))
            case AskClear():
                self._clear(ask, reply)
            case AskWarm() | AskPin():
                self._pins.fetch(ask, self._now_s, reply)
            case AskUnpin():
                reply(self._pins.unpin(ask))
            case AskVerify():
                self._verify(ask, reply)

    # Questions

    def _list(self, ask: AskNamespaces, parts: Mapping[int, ChoreDone]) -> Namespaces:
        floor = self._books.floor
        census = floor.slots.census(Selection()) if floor else {}
        found = {(0, tag): n for tag, n in census.items()}
        for tier, part in parts.items():
            sizes = part.size_bytes
            found |= {(tier, int(tag)): (part.pages[tag], n) for tag, n in sizes.items()}
        names = self._books.namespaces
        rows = [
            NamespaceRow(tag, names.get(tag, ""), place, pages, size_bytes)
            for (place, tag), (pages, size_bytes) in found.items()
        ]
        rows.sort(key=lambda row: (-row.size_bytes, row.namespace, row.place))
        omitted = max(0, len(rows) - MAX_LISTED_NAMESPACES)
        return Namespaces(ask.number, tuple(rows[:MAX_LISTED_NAMESPACES]), omitted)

    def _inspect(self, ask: AskPage) -> PageFacts:
        state = self._books.index.inspect(ask.key)
        if state is None:
            return PageFacts(ask.number, is_known=False)
        names = self._rules.place_names
        places = tuple(name for place, name in enumerate(names) if state.places >> place & 1)
        facts = PageFacts(
            number=ask.number,
            is_known=True,
            parent=state.parent,
            places=places,
            size_bytes=state.size_bytes,
            children=state.children,
            leases=state.leases,
        )
        floor = self._books.floor
        if floor is None or not state.places & 1:
            return facts
        page = floor.slots.holding(state.slot)
        return msgspec.structs.replace(
            facts,
            slot=state.slot,
            generation=floor.slots.generation(state.slot),
            reads=page.reads if page is not None else 0,
        )

    # Orders

    def _clear(self, ask: AskClear, reply: Reply) -> None:
        floor = self._books.floor
        before_s = math.inf if ask.older_s is None else self._now_s - ask.older_s
        wanted = Selection(ask.namespace, before_s)
        here = floor.slots.census(wanted).values() if floor is not None else ()
        arena = (sum(pages for pages, _ in here), sum(size_bytes for _, size_bytes in here))
        self._surveys.begin(
            lambda ticket: Sweep(ticket, ask.mode, ask.namespace, ask.older_s),
            lambda parts: reply(self._sum_up(ask, arena, parts)),
        )
        if floor is not None and ask.mode is Mode.CARRY_OUT:
            self._clearing = self._clearing or ArenaClearing(floor.slots)
            self._clearing.begin(wanted)

    def _sum_up(
        self, ask: AskClear, arena: tuple[int, int], parts: Mapping[int, ChoreDone]
    ) -> Done:
        names = self._rules.place_names
        pages, size_bytes = {names[0]: arena[0]}, arena[1]
        for tier, part in sorted(parts.items()):
            pages[names[tier]] = part.pages.get(WriteOutcome.DROPPED, 0)
            size_bytes += part.size_bytes.get(WriteOutcome.DROPPED, 0)
        remark = "pages of the arena that are in use stay until they are not"
        return Done(ask.number, ask.mode, pages, size_bytes, remark)

    def _verify(self, ask: AskVerify, reply: Reply) -> None:
        def report(parts: Mapping[int, ChoreDone]) -> None:
            pages: Counter[str] = Counter()
            for part in parts.values():
                pages.update(part.pages)
            read = sum(part.size_bytes.get(ReadOutcome.READ, 0) for part in parts.values())
            reply(Done(ask.number, ask.mode, dict(pages), read))

        self._surveys.begin(lambda ticket: VerifyPages(ticket, ask.mode, ask.bytes_per_s), report)
