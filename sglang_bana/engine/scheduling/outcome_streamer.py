"""Tells clients what became of their budget: the last event's `meta_info` gets a `bana` entry."""

from __future__ import annotations

import time
from typing import Any, ClassVar

from bana.slo.budget import judge_budget
from sglang_bana.engine.linker.streamer import StoreStreamer

KEY = "bana"


class OutcomeStreamer(StoreStreamer):
    """The store's streamer, which adds an outcome to every answer that has ended."""

    has_additional_customized_info: ClassVar[bool] = True

    def build_additional_customized_info(self, reqs: list[Any]) -> dict[str, list[Any]]:
        now_s = time.monotonic()
        return {KEY: [describe_outcome(req, now_s) for req in reqs]}


def describe_outcome(req: Any, now_s: float) -> list[dict[str, Any]]:
    """One entry for a finished request, in milliseconds; none before, and none without a token."""
    standing = getattr(req, "bana", None)
    if standing is None or not req.finished() or not req.output_ids:
        return []
    first_s = now_s if standing.first_token_s is None else standing.first_token_s
    outcome = judge_budget(standing.budget, first_s, now_s, len(req.output_ids))
    return [
        {
            "slo_class": standing.budget.slo_class,
            "ttft_ms": outcome.ttft_s * 1e3,
            "tpot_ms": None if outcome.tpot_s is None else outcome.tpot_s * 1e3,
            "slack_ms": outcome.slack_s * 1e3,
            "met": [str(limit) for limit in outcome.met],
            "missed": [str(limit) for limit in outcome.missed],
        }
    ]
