"""The same requests at another rate: points of a load grid differ in time alone."""

from __future__ import annotations

import msgspec

from bana.eval.requests import Phase, Workload
from bana.eval.workload.content import digest_all, digest_content
from bana.eval.workload.facts import describe_times
from bana.slo.errors import ConfigError

MIN_FACTOR = 1e-6
MAX_FACTOR = 1e6
_SECONDS = ("warmup_s", "cooldown_s")
_RATES = ("target_rate_rps", "time_scale")


def scale_rate(workload: Workload, factor: float) -> Workload:
    """`workload` offered `factor` times as fast; every request, phase and order is kept.

    All three phases are compressed, and with them the think times of conversations. What clients
    do by themselves (`cancel_after_s`) is not.
    """
    if not MIN_FACTOR <= factor <= MAX_FACTOR:
        raise ConfigError(
            f"rate factor {factor!r}: allowed are {MIN_FACTOR:g} to {MAX_FACTOR:g}; 2 offers the "
            "same requests twice as fast"
        )
    requests = tuple(
        msgspec.structs.replace(request, due_s=request.due_s / factor)
        for request in workload.requests
    )
    window_s = workload.window_s / factor
    window = [request for request in requests if request.phase is Phase.WINDOW]
    facts = {
        **workload.facts,
        **{key: _scale(workload.facts.get(key), 1 / factor) for key in _SECONDS},
        **{key: _scale(workload.facts.get(key), factor) for key in _RATES},
        **describe_times(window, window_s),
        "window_s": window_s,
    }
    fingerprint = digest_all(requests, window_s, digest_content(requests))
    return Workload(requests, window_s, workload.seed, fingerprint, facts)


def _scale(value: object, factor: float) -> object:
    return value * factor if isinstance(value, int | float) else value
