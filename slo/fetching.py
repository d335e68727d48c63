"""What a request could have fetched instead of computed, and what both would take.

prompt   │ on the device │ arrived │ known to the store │ nobody has it │
                         └─ candidates: fetch up to here ┘
cost of a candidate = when its last page is there, then computing everything behind it
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from bana.slo.steps import EnginePrices

Floats: TypeAlias = npt.NDArray[np.float64]
Integers: TypeAlias = npt.NDArray[np.int64]

# So many ways to cut a prompt are compared, however many pages it has.
MAX_CANDIDATES = 64
PLACES = 8
IN_ARENA = 1


class TierView(msgspec.Struct, frozen=True):
    """A tier of storage, as reading from it goes at present.

    `bytes_per_s` 0 was not measured yet. `ahead_bytes` are read from it before this request's.
    """

    place: int
    bytes_per_s: float
    latency_s: float
    ahead_bytes: float


class RestoreView(msgspec.Struct, frozen=True):
    """A request whose pages were asked for at `asked_s`, and whose first token is due at
    `deadline_s`.

    The device holds the first `device_tokens` of its `prompt_tokens`, whole pages of `page_tokens`
    tokens and `page_bytes` bytes. `known` holds, for each page from there on that the store has
    promised, the mask of places that hold it (bit 0 the arena), None before its answer;
    `arrived_pages` of them are in the arena for it, without a gap; `coming_pages` behind the known
    ones are being computed by others; `is_settled` says that nothing more will come. `prices` are
    what computing costs, None where nobody can tell; `delayed_requests` wait for it besides.
    `can_meet` says that computing may begin, and stop at any page, while others are fetched.
    """

    asked_s: float
    deadline_s: float
    prompt_tokens: int
    device_tokens: int
    page_tokens: int
    page_bytes: int
    known: bytes | None
    arrived_pages: int
    coming_pages: int
    is_settled: bool
    prices: EnginePrices | None
    delayed_requests: int
    tiers: tuple[TierView, ...]
    can_meet: bool = False


class ComputeView(msgspec.Struct, frozen=True):
    """What computing costs on an engine now, None where nobody can tell, how many requests wait for
    it beside the one that is asked about, and whether it can stop at any page of a prompt.
    """

    prices: EnginePrices | None
    delayed_requests: int
    can_meet: bool = False


@dataclass(frozen=True)
class Candidates:
    """Ways to cut the prompt, by rising `pages`: as many are fetched, what follows is computed.

    `arrival_s` is from now until the last of them is there, `compute_s` what the rest takes.
    """

    pages: Integers
    arrival_s: Floats
    compute_s: Floats


@dataclass(frozen=True)
class Meetings:
    """Ways to compute and fetch at once, by rising `pages`: so many first ones are computed in
    `compute_s`, all known ones behind them are there after `arrival_s`; then follows `rest_s`.
    """

    pages: Integers
    compute_s: Floats
    arrival_s: Floats
    rest_s: float


def list_meetings(view: RestoreView, prices: EnginePrices) -> Meetings:
    """From the first page that has not arrived to the last known one. O(known pages)."""
    known, arrived = len(view.known or b""), view.arrived_pages
    count = max(0, min(known - arrived - 1, MAX_CANDIDATES))
    pages = np.linspace(arrived + 1, known - 1, count).astype(np.int64)
    new = (pages - arrived) * view.page_tokens
    prefix = np.full_like(new, view.device_tokens + arrived * view.page_tokens)
    (rest_s,) = price_rest_s(view, prices, np.array([known])).tolist()
    compute_s = prices.estimate_prefills_s(new, prefix)
    return Meetings(pages, compute_s, estimate_arrivals_behind_s(view, pages), rest_s)


def list_candidates(view: RestoreView, prices: EnginePrices) -> Candidates:
    """From what has arrived to all that is known. O(known pages), the ends included."""
    known = len(view.known or b"")
    count = min(known - view.arrived_pages + 1, MAX_CANDIDATES)
    pages = np.linspace(view.arrived_pages, known, count).astype(np.int64)
    return Candidates(pages, estimate_arrivals_s(view, pages), price_rest_s(view, prices, pages))


def price_rest_s(view: RestoreView, prices: EnginePrices, pages: Integers) -> Floats:
    """What computing takes behind so many restored pages; one token is always computed."""
    prefix = np.minimum(view.device_tokens + pages * view.page_tokens, view.prompt_tokens - 1)
    new = view.prompt_tokens - prefix
    return prices.estimate_prefills_s(new, prefix)


def estimate_arrivals_s(view: RestoreView, pages: Integers) -> Floats:
    """When so many pages will be there, from now.

    Tiers read side by side: pages that only some of them hold take those as long as it takes, and
    all pages take all of them together as long as it takes. A tier that was never measured costs
    nothing, until it has been.
    """
    steps = pages - view.arrived_pages
    return _estimate_reads_s(view, pages.size, lambda sums: sums[steps])


def estimate_arrivals_behind_s(view: RestoreView, pages: Integers) -> Floats:
    """The same for all other known pages, where those behind so many are read alone."""
    steps = pages - view.arrived_pages
    return _estimate_reads_s(view, pages.size, lambda sums: sums[-1] - sums[steps])


def _estimate_reads_s(
    view: RestoreView, size: int, count: Callable[[Integers], Integers]
) -> Floats:
    """`count` picks, from how many pages are missing before each place, how many are read."""
    masks = np.frombuffer(view.known or b"", np.uint8)[view.arrived_pages :]
    speeds = {tier.place: tier for tier in view.tiers if tier.bytes_per_s > 0}
    missing = masks & IN_ARENA == 0
    longest = np.zeros(size)
    if not missing.any():
        return longest
    kinds: list[int] = np.unique(masks[missing]).tolist()
    every = np.bitwise_or.reduce(masks[missing]).item()
    for kind in {*kinds, every}:
        of_kind = missing if kind == every else missing & (masks == kind)
        wanted = count(np.concatenate(([0], np.cumsum(of_kind))))
        tiers = [tier for place, tier in speeds.items() if kind >> place & 1]
        if not tiers:
            continue
        bytes_per_s = sum(tier.bytes_per_s for tier in tiers)
        ahead = sum(tier.ahead_bytes for tier in tiers)
        latency_s = min(tier.latency_s for tier in tiers)
        busy_s = latency_s + (ahead + wanted * view.page_bytes) / bytes_per_s
        longest = np.maximum(longest, np.where(wanted > 0, busy_s, 0.0))
    return longest
