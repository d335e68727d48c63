"""Requests with promises, asked of one instance directly, and what its load reports say of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from bana.slo.wire import LoadReport, SchedulingReport

BOOT_ID = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
NEW_TOKENS = 12


class Ask(msgspec.Struct, frozen=True):
    """One request of a load: how long its prompt is, and how soon its first token is due."""

    prompt_tokens: int
    ttft_s: float
    seed: int
    tpot_s: float = 0.5


def prompt_of(ask: Ask) -> list[int]:
    rng = Random(ask.seed)
    return [rng.randrange(3, 400) for _ in range(ask.prompt_tokens)]


def promise_of(ttft_s: float, tpot_s: float) -> dict[str, Any]:
    """What a front door writes into `custom_params`, for a request that arrives now."""
    now_s = time.monotonic()
    return {
        "bana_slo_class": "standard",
        "bana_ttft_s": ttft_s,
        "bana_tpot_s": tpot_s,
        "bana_arrival_s": now_s,
        "bana_deadline_s": now_s + ttft_s,
        "bana_boot_id": BOOT_ID,
    }


def body_of(ask: Ask, **more: Any) -> dict[str, Any]:
    """The body for /generate, answered greedily with NEW_TOKENS tokens; `more` goes beside."""
    sampling = {"max_new_tokens": NEW_TOKENS, "temperature": 0, "ignore_eos": True}
    promise = promise_of(ask.ttft_s, ask.tpot_s)
    return {
        "input_ids": prompt_of(ask),
        "sampling_params": {**sampling, "custom_params": promise},
        **more,
    }


def scheduling_of(instance: Any, is_wanted: Callable[[LoadReport], bool]) -> SchedulingReport:
    report = instance.wait_report(is_wanted, time.monotonic())
    assert report.scheduling is not None
    return report.scheduling


def is_empty(report: LoadReport) -> bool:
    counts = (report.running_requests, report.waiting_requests, report.prefilling_tokens)
    return counts == (0, 0, 0)
