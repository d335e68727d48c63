"""What a decision to fetch or recompute says, and what is common to all who decide it."""

from __future__ import annotations

from enum import StrEnum

import msgspec
import numpy as np

from bana.slo.fetching import RestoreView, price_rest_s

# The store answers within a millisecond or two. It gets a share of what the prompt costs, within
# these bounds: short prompts must not wait for it, long ones not give up a busy host's store.
ANSWER_SHARE = 0.25
SHORTEST_ANSWER_S = 0.005
LONGEST_ANSWER_S = 0.25
# Where nobody knows what computing costs.
UNPRICED_ANSWER_S = 0.05
# No request is held longer, whatever a policy's options say.
LONGEST_HOLD_S = 600.0


class RestoreReason(StrEnum):
    """Why a request waits so long, or not at all."""

    COMPLETE = "complete"  # all that can come is there
    UNANSWERED = "unanswered"  # the store has not said yet what it has
    UNPRICED = "unpriced"  # nobody knows what computing takes
    COMPUTE = "compute"  # computing the rest is cheaper
    FETCH = "fetch"  # all known pages are worth waiting for
    PARTIAL = "partial"  # so many are, the others are computed
    BUDGET = "budget"  # a longer wait would cost the promise
    WORTH = "worth"  # it has waited as long as the pages can save
    ELSEWHERE = "elsewhere"  # others compute it
    MEET = "meet"  # its first pages are computed while those behind them are fetched
    LONGEST = "longest"  # the bound of any wait
    FIXED = "fixed"  # a rule that looks at nothing else


class RestorePlan(msgspec.Struct, frozen=True):
    """Hold the request until `pages` have arrived, at most until `until_s`; not at all where that
    has passed. With `meet_page`, the pages before that one are to be computed meanwhile, and it is
    thought over again there.
    """

    pages: int
    until_s: float
    reason: RestoreReason
    meet_page: int = 0


def is_complete(view: RestoreView) -> bool:
    """Whether nothing more can come."""
    if view.is_settled or view.known is None:
        return view.is_settled
    return view.arrived_pages >= count_expected(view)


def count_expected(view: RestoreView) -> int:
    """How many pages may be restored in the end."""
    return len(view.known or b"") + view.coming_pages


def stop(view: RestoreView, now_s: float, reason: RestoreReason) -> RestorePlan:
    """It goes on with what has arrived."""
    return RestorePlan(view.arrived_pages, now_s, reason)


def await_answer(view: RestoreView) -> RestorePlan:
    """Until the store has said what it has, which is worth little of what the prompt costs."""
    wait_s = UNPRICED_ANSWER_S
    if view.prices is not None:
        (service_s,) = price_rest_s(view, view.prices, np.array([view.arrived_pages])).tolist()
        wait_s = min(max(ANSWER_SHARE * service_s, SHORTEST_ANSWER_S), LONGEST_ANSWER_S)
    return RestorePlan(0, view.asked_s + wait_s, RestoreReason.UNANSWERED)
