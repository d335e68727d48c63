"""Fetch or recompute: the protocol, and its policies by name.

asked ─▶ the store answers ─▶ pages arrive ─▶ enough of them, or no longer worth it ─▶ admitted
         └───────────── held: others run meanwhile ────────────┘      the rest is computed

A policy says how many pages are worth waiting for, and until when. It is asked again when that
many have arrived, or that time has come.
"""

from __future__ import annotations

import dataclasses
from random import Random
from typing import Annotated, Protocol

import msgspec

from bana.slo.fetching import RestoreView, TierView
from bana.slo.registry import PolicyEntry, PolicyRegistry
from bana.slo.restore_plan import (
    LONGEST_HOLD_S,
    RestorePlan,
    RestoreReason,
    await_answer,
    count_expected,
    is_complete,
    stop,
)
from bana.slo.restore_planner import PlannedOptions, PlannedRestore

__all__ = [
    "DEFAULT_RESTORE",
    "LONGEST_HOLD_S",
    "RESTORES",
    "RestorePlan",
    "RestorePolicy",
    "RestoreReason",
    "RestoreView",
    "TierView",
]


class RestorePolicy(Protocol):
    """Law: `pages` lies between what has arrived and what is known or coming; a complete view is
    held no longer; no wait lasts for ever: asked again at `until_s` with an unchanged view, a
    policy ends it after at most LONGEST_HOLD_S from `asked_s`; equal inputs give equal answers.

    `asks` is False where the store is not even asked.
    """

    asks: bool

    def decide_restore(self, view: RestoreView, now_s: float, rng: Random) -> RestorePlan: ...


@dataclasses.dataclass(frozen=True)
class AlwaysOptions:
    """`most_s` is the longest wait, for the answer and for the pages."""

    most_s: Annotated[float, msgspec.Meta(gt=0, le=600)] = 60.0


class AlwaysRestore:
    """Every page that the store has, however long it takes."""

    asks = True

    def __init__(self, options: AlwaysOptions) -> None:
        self._options = options

    def decide_restore(self, view: RestoreView, now_s: float, rng: Random) -> RestorePlan:
        if is_complete(view):
            return stop(view, now_s, RestoreReason.COMPLETE)
        until_s = view.asked_s + self._options.most_s
        return RestorePlan(count_expected(view), until_s, RestoreReason.FIXED)


class NeverRestore:
    """Nothing is fetched: everything that the device lacks is computed."""

    asks = False

    def decide_restore(self, view: RestoreView, now_s: float, rng: Random) -> RestorePlan:
        return stop(view, now_s, RestoreReason.FIXED)


@dataclasses.dataclass(frozen=True)
class TimeoutOptions:
    """The longest wait is `base_s`, and `ki_token_s` for each 1,024 known tokens."""

    base_s: Annotated[float, msgspec.Meta(ge=0, le=600)] = 1.0
    ki_token_s: Annotated[float, msgspec.Meta(ge=0, le=60)] = 0.25


class TimeoutRestore:
    """Wait for all known pages, but no longer than a time in proportion to them (SGLang HiCache's
    `timeout`, with its defaults).
    """

    asks = True

    def __init__(self, options: TimeoutOptions) -> None:
        self._options = options

    def decide_restore(self, view: RestoreView, now_s: float, rng: Random) -> RestorePlan:
        if is_complete(view):
            return stop(view, now_s, RestoreReason.COMPLETE)
        if view.known is None:
            return await_answer(view)
        pages = count_expected(view)
        tokens = pages * view.page_tokens
        wait_s = self._options.base_s + self._options.ki_token_s * tokens / 1024
        until_s = view.asked_s + min(wait_s, LONGEST_HOLD_S)
        return RestorePlan(pages, until_s, RestoreReason.FIXED)


class ArrivedRestore:
    """Nobody waits for pages: what has come by its turn is used (SGLang HiCache's `best_effort`).

    Except for the store's answer, which brings what is in the arena.
    """

    asks = True

    def decide_restore(self, view: RestoreView, now_s: float, rng: Random) -> RestorePlan:
        if is_complete(view):
            return stop(view, now_s, RestoreReason.COMPLETE)
        if view.known is None:
            return await_answer(view)
        return stop(view, now_s, RestoreReason.FIXED)


RESTORES: PolicyRegistry[RestorePolicy] = PolicyRegistry(
    "restore",
    {
        "planned": PolicyEntry(PlannedRestore, PlannedOptions),
        "always": PolicyEntry(AlwaysRestore, AlwaysOptions),
        "never": PolicyEntry(lambda _: NeverRestore()),
        "timeout": PolicyEntry(TimeoutRestore, TimeoutOptions),
        "arrived": PolicyEntry(lambda _: ArrivedRestore()),
    },
    members=("asks", "decide_restore"),
)
DEFAULT_RESTORE = "planned"
