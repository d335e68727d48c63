"""Orders to warm, pin and unpin, and the pins of an earlier life, made again one by one."""

from __future__ import annotations

from collections.abc import Callable

from bana.radix_global.admin_messages import Answer, AskPin, AskUnpin, AskWarm, Done, Mode
from bana.radix_global.daemon.books import StoreBooks
from bana.radix_global.daemon.floor import Floor
from bana.radix_global.daemon.kept_pins import KeptPins
from bana.radix_global.daemon.pinning import Fetched, Pinning
from bana.radix_global.keys import KEY_BYTES, count_keys
from bana.slo.errors import StoreError

MAX_WARM_S = 3600.0
Reply = Callable[[Answer], None]


class PinDesk:
    """What one daemon keeps in its arena for administrators; StoreError where that cannot be."""

    def __init__(self, books: StoreBooks, kept: KeptPins) -> None:
        self._books = books
        self._kept = kept
        self._pinning: Pinning | None = None
        # One at a time: each is to have the reader's room for itself.
        self._is_making = False
        self._saved_changes = 0

    @property
    def pinned_pages(self) -> int:
        """How many pages are kept in the arena by pins."""
        return 0 if self._pinning is None else self._pinning.pinned_pages

    @property
    def waiting_pins(self) -> int:
        """How many pins of an earlier life are to be made again."""
        return len(self._kept)

    @property
    def is_busy(self) -> bool:
        """Whether `tick` has something to do at once, if all tiers were looked through."""
        return self._books.floor is not None and not self._is_making and len(self._kept) > 0

    def fetch(self, ask: AskWarm | AskPin, now_s: float, reply: Reply) -> None:
        """Bring a prefix in, or say what that would be about."""
        count_keys(ask.keys)
        pinning = self._open_pinning()
        if not ask.keys:
            raise StoreError("no keys; name the pages of a prefix, the first one first")
        if ask.mode is Mode.PLAN:
            reply(_report_fetch(ask, pinning.plan(ask.keys)))
            return
        deadline_s = now_s + min(ask.timeout_s, MAX_WARM_S)
        bring = pinning.warm if isinstance(ask, AskWarm) else pinning.pin
        bring(ask.keys, deadline_s, lambda fetched: reply(_report_fetch(ask, fetched)))
        if isinstance(ask, AskPin):
            self._kept.forget(ask.keys[-KEY_BYTES:])

    def unpin(self, ask: AskUnpin) -> Done:
        """End pins, those that wait for their pages too."""
        waiting = self._kept.ends(ask.key)
        pinning = self._pinning if waiting else self._open_pinning()
        ends = () if pinning is None else pinning.ends(ask.key)
        pages = 0 if pinning is None else sum(pinning.count(end) for end in ends)
        if ask.mode is Mode.CARRY_OUT:
            for end in waiting:
                self._kept.forget(end)
            for end in ends:
                self._open_pinning().unpin(end)
        remark = f"{len(ends) + len(waiting)} pins"
        return Done(ask.number, ask.mode, {"pinned": pages}, 0, remark)

    def tick(self, now_s: float, *, is_whole: bool) -> None:
        """Make the next pin again, let go of what was warmed, write down what changed."""
        if self._books.floor is not None and not self._is_making:
            keys = self._kept.take_found(is_whole=is_whole)
            if keys is not None:
                self._make_again(keys, now_s)
        changes = self._kept.changes
        if self._pinning is not None:
            self._pinning.sweep()
            changes += self._pinning.changes
        if changes != self._saved_changes:
            self._saved_changes = changes
            self._kept.save(() if self._pinning is None else self._pinning.pins())

    def _make_again(self, keys: bytes, now_s: float) -> None:
        self._is_making = True

        def report(fetched: Fetched) -> None:
            self._is_making = False
            self._kept.tell_made(keys, fetched.pages, fetched.outcome)

        try:
            self._open_pinning().pin(keys, now_s + MAX_WARM_S, report)
        except StoreError as error:
            self._is_making = False
            self._kept.tell_refused(keys, str(error))

    def _open_pinning(self) -> Pinning:
        if self._pinning is None:
            share = self._books.rules.limits.pinned_share
            self._pinning = Pinning(self._require_floor(), self._books.index, share)
        return self._pinning

    def _require_floor(self) -> Floor:
        if self._books.floor is None:
            raise StoreError(
                "there is no arena before the first instance has said how large its pages are; "
                "start one, or set store.slot_bytes"
            )
        return self._books.floor


def _report_fetch(ask: AskWarm | AskPin, fetched: Fetched) -> Done:
    pages = {"asked": fetched.asked, "known": fetched.pages}
    if ask.mode is Mode.CARRY_OUT:
        pages = {"asked": fetched.asked, "in_arena": fetched.pages}
    return Done(ask.number, ask.mode, pages, fetched.size_bytes, fetched.outcome)
