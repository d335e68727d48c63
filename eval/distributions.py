"""The latencies of one request, and exact percentiles over many."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from bana.eval.requests import Ending, Observed
from bana.eval.summary import Distribution, Latencies
from bana.slo.errors import ConfigError

QUANTILES = (0.5, 0.9, 0.95, 0.99)


def measure_ttft_s(observed: Observed) -> float | None:
    """TTFT from the schedule."""
    return _subtract(observed.first_s, observed.due_s)


def measure_ttft_from_send_s(observed: Observed) -> float | None:
    """TTFT from the send."""
    return _subtract(observed.first_s, observed.sent_s)


def measure_tpot_s(observed: Observed) -> float | None:
    """(last - first) / (n - 1) of the tokens that came; None for fewer than two."""
    if observed.output_tokens < 2:
        return None
    span_s = _subtract(observed.last_s, observed.first_s)
    return None if span_s is None else span_s / (observed.output_tokens - 1)


def measure_e2e_s(observed: Observed) -> float | None:
    """From the schedule to the end of a whole answer."""
    return measure_wait_s(observed) if observed.ending is Ending.FINISHED else None


def measure_e2e_from_send_s(observed: Observed) -> float | None:
    """From the send to the end of a whole answer."""
    if observed.sent_s is None:
        return None
    e2e_s, lateness_s = measure_e2e_s(observed), observed.sent_s - observed.due_s
    return None if e2e_s is None else e2e_s - lateness_s


def measure_wait_s(observed: Observed) -> float | None:
    """From the schedule until the request was over for its client, however it ended."""
    end_s = observed.last_s if observed.end_s is None else observed.end_s
    return _subtract(end_s, observed.due_s)


def measure_gaps_s(observed: Observed) -> npt.NDArray[np.float64]:
    """ITL: the gaps between the events that carried tokens, however many each carried.

    As vLLM's benchmark and SGLang's for its OpenAI endpoint have it. A gap is not divided among
    the tokens that ended it (as SGLang's does for /generate): that would hide a stall.
    """
    events = zip(observed.event_times_s, observed.event_tokens, strict=True)
    return np.diff(np.array([at_s for at_s, tokens in events if tokens > 0], dtype=np.float64))


def describe(values: Iterable[float | None]) -> Distribution | None:
    """Exact percentiles of the values that are there; None where there is none.

    Linear interpolation between the two nearest ranks. The order of the values does not matter.
    """
    return _describe_known(np.array([v for v in values if v is not None], dtype=np.float64))


def describe_latencies(requests: Sequence[Observed]) -> Latencies:
    """Every latency of these requests, each over those that have it."""
    gaps_s = [np.empty(0), *(measure_gaps_s(o) for o in requests)]
    return Latencies(
        ttft_s=describe(map(measure_ttft_s, requests)),
        ttft_from_send_s=describe(map(measure_ttft_from_send_s, requests)),
        itl_s=_describe_known(np.concatenate(gaps_s)),
        tpot_s=describe(map(measure_tpot_s, requests)),
        e2e_s=describe(map(measure_e2e_s, requests)),
        e2e_from_send_s=describe(map(measure_e2e_from_send_s, requests)),
    )


def _subtract(later: float | None, earlier: float | None) -> float | None:
    return None if later is None or earlier is None else later - earlier


def _describe_known(values: npt.NDArray[np.float64]) -> Distribution | None:
    known = np.sort(values)
    if known.size == 0:
        return None
    if not np.isfinite(known).all():
        raise ConfigError(
            f"{known[~np.isfinite(known)][0]} among the figures of a run, allowed: finite numbers; "
            "the run's file is damaged"
        )
    with np.errstate(over="ignore"):
        # Rounding, or an overflowing sum, must not put the mean outside of its values.
        mean = float(np.clip(known.mean(), known[0], known[-1]))
    p50, p90, p95, p99 = (float(q) for q in np.quantile(known, QUANTILES))
    return Distribution(known.size, mean, p50, p90, p95, p99, float(known[-1]))
