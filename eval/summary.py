"""What a load run amounts to: the records that reports print and comparisons read.

Each figure is defined once, in the README of this folder; `goodput` computes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from bana.eval.requests import Ending, Validity


class Dimension(StrEnum):
    """Why a request did not meet its limits; a request may have several reasons."""

    TTFT = "ttft"
    TPOT = "tpot"
    E2E = "e2e"
    NO_ANSWER = "no_answer"  # rejected, failed, cut or unfinished


class Spread(msgspec.Struct, frozen=True):
    """A value with the 95 % interval that resampling blocks of the run gives it."""

    value: float
    low: float
    high: float


class Distribution(msgspec.Struct, frozen=True):
    """Exact percentiles over the requests that have the quantity, in its own unit."""

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    largest: float


class Latencies(msgspec.Struct, frozen=True):
    """Seconds; None where no request has the quantity.

    `ttft_s` and `e2e_s` count from the schedule, the `…_from_send_s` beside them from the send.
    """

    ttft_s: Distribution | None
    ttft_from_send_s: Distribution | None
    itl_s: Distribution | None
    tpot_s: Distribution | None
    e2e_s: Distribution | None
    e2e_from_send_s: Distribution | None


class Group(msgspec.Struct, frozen=True):
    """The requests of the window that share a class, a quartile of prompt length, or all of them.

    `offered` is the denominator of `attainment`; `missed` counts requests by reason.
    """

    name: str
    offered: int
    met: int
    attainment: Spread
    goodput_rps: Spread
    endings: Mapping[Ending, int]
    missed: Mapping[Dimension, int]
    latencies: Latencies
    prompt_tokens_low: int
    prompt_tokens_high: int


class Balance(msgspec.Struct, frozen=True):
    """What the server told about its instances, averaged over the window.

    `max_over_mean` of running and waiting requests: 1 is perfect balance.
    """

    instances: int
    mean_running: float
    mean_waiting: float
    largest_waiting: float
    max_over_mean: float


class Summary(msgspec.Struct, frozen=True):
    """One run. `sentence` is the answer and what limited it, for people in a hurry."""

    target: str
    seed: int
    fingerprint: str
    workload: Mapping[str, object]
    validity: Validity
    is_interrupted: bool
    window_s: float
    duration_s: float
    offered_rps: float
    arrival_cv: float | None
    input_tokens_per_s: float
    output_tokens_per_s: float
    lateness_s: Distribution | None
    overall: Group
    classes: tuple[Group, ...]
    quartiles: tuple[Group, ...]
    jain_index: float | None
    worst_class: str | None
    probe_ttft_s: Distribution | None
    probes_failed: int
    balance: Balance | None
    cached_share: float | None
    sentence: str


class LoadPoint(msgspec.Struct, frozen=True):
    """One offered rate of a load grid, with the attainment and p99 TTFT seen there."""

    offered_rps: float
    attainment: float
    p99_ttft_s: float | None
    is_valid: bool = True


class MaxRate(msgspec.Struct, frozen=True):
    """The highest rate at which the target attainment is kept; None where not bracketed.

    `reason` says how it was found, or why it could not be.
    """

    rps: float | None
    target: float
    points: tuple[LoadPoint, ...]
    reason: str


class Verdict(StrEnum):
    """What a paired comparison shows."""

    BETTER = "better"
    WORSE = "worse"
    NO_DIFFERENCE = "no difference shown"


class Comparison(msgspec.Struct, frozen=True):
    """One metric of B over A: the median ratio of pairs with its interval, and the verdict."""

    metric: str
    ratio: Spread
    pairs: int
    verdict: Verdict
