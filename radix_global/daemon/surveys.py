"""Orders that every tier works on: counted together once the last one has answered.

The arena's part is done here, in steps, between the messages of clients.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from bana.radix_global.daemon.chores import Chore, ChoreDone, TierChores
from bana.radix_global.daemon.slots import Selection, SlotBook
from bana.slo.errors import StoreError

MAX_SURVEYS = 16
CLEAR_STEP = 512


@dataclasses.dataclass
class Survey:
    """One order under way: which tiers still owe their part, and what the others found."""

    waits_for: set[int]
    report: Callable[[dict[int, ChoreDone]], None]
    parts: dict[int, ChoreDone] = dataclasses.field(default_factory=dict)


class Surveys:
    """The orders under way, by ticket."""

    def __init__(self, chores: Sequence[TierChores]) -> None:
        self._chores = tuple(chores)
        self._surveys: dict[int, Survey] = {}
        self._tickets = 0

    def begin(
        self, build: Callable[[int], Chore], report: Callable[[dict[int, ChoreDone]], None]
    ) -> None:
        """Give each tier the order `build(ticket)`; StoreError where too much is under way."""
        if len(self._surveys) >= MAX_SURVEYS:
            raise StoreError(f"{len(self._surveys)} orders are under way; ask again later")
        self._tickets += 1
        chore = build(self._tickets)
        survey = Survey({chores.tier for chores in self._chores}, report)
        # No tier begins what another one has no time for: only this thread gives orders.
        for chores in self._chores:
            if chores.is_full:
                raise StoreError(f"tier {chores.tier} has too much to do already; ask again later")
        for chores in self._chores:
            chores.order(chore)
        if not survey.waits_for:
            report({})
            return
        self._surveys[self._tickets] = survey

    def note(self, done: ChoreDone) -> None:
        """A tier has done its part; those of orders that were never begun everywhere are none."""
        survey = self._surveys.get(done.ticket)
        if survey is None:
            return
        survey.parts[done.tier] = done
        survey.waits_for.discard(done.tier)
        if not survey.waits_for:
            del self._surveys[done.ticket]
            survey.report(survey.parts)


class ArenaClearing:
    """Pages to be taken out of the arena, a few at a time."""

    def __init__(self, slots: SlotBook) -> None:
        self._slots = slots
        self._left: list[tuple[int, Selection]] = []

    @property
    def is_busy(self) -> bool:
        """Whether `step` has something to do."""
        return bool(self._left)

    def begin(self, wanted: Selection) -> None:
        """Clear what is there now of such pages, besides what is being cleared already."""
        self._left += [(slot, wanted) for slot in self._slots.held_slots(wanted)]

    def step(self) -> None:
        """Clear the next few; those in use stay."""
        for slot, wanted in self._left[-CLEAR_STEP:]:
            # By now another page may be there, which came later.
            self._slots.clear(slot, wanted)
        del self._left[-CLEAR_STEP:]
