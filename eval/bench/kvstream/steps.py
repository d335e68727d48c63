"""The steps from no store to bana's, each with what the one before it has: KVStream's order.

no_store ─▶ sequential ─▶ batched ─▶ deferred ─▶ second_tier ─▶ completion
            │ a page at    │ all       │ writes     │ a preset     └ whichever tier is free
            └ a time       └ at once   └ wait       └ split
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

NO_STORE = "no_store"
# What every other step is held against: how a plain store works.
PLAIN = "sequential"
WIDTH = 4
STOCK: Mapping[str, object] = {"order": "stock", "governor": "stock"}


class Writes(StrEnum):
    """Whether new pages are written among the reads, or give way to them."""

    AT_ONCE = "at_once"
    DEFERRED = "deferred"


class StepPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One way to keep KV: on the first so many tiers, each read by `width` threads.

    Without tiers there is no store. `reader`, `placement` and `restore` are names of bana's
    policies: by default whoever waits for pages gets them, since what a step does is to show. With
    `scheduling` as it is, SGLang decides, and nobody knows what computing costs.
    """

    name: str
    tiers: int
    reader: str = "completion"
    width: int = WIDTH
    placement: str = "one"
    writes: Writes = Writes.DEFERRED
    restore: str = "always"
    restore_options: Mapping[str, object] = {}
    scheduling: Mapping[str, object] = msgspec.field(default_factory=lambda: STOCK)


# One tier that every policy reads alike leaves the width as the only difference to `batched`.
STEPS = (
    StepPlan(name=NO_STORE, tiers=0),
    StepPlan(name=PLAIN, tiers=1, reader="sequential", width=1, writes=Writes.AT_ONCE),
    StepPlan(name="batched", tiers=1, writes=Writes.AT_ONCE),
    StepPlan(name="deferred", tiers=1),
    StepPlan(name="second_tier", tiers=2, reader="fixed_split", placement="adaptive"),
    StepPlan(name="completion", tiers=2, placement="adaptive"),
)
