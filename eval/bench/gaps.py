"""Gamma gaps between arrivals, drawn so that a short window holds what was asked for."""

from __future__ import annotations

from bana.eval.bench.errors import BenchError
from bana.eval.live.measure import mix_seed
from bana.eval.workload.arrivals import Phases, Process, plan_arrivals
from bana.eval.workload.seeds import Purpose, Seeds
from bana.eval.workload.spec import ArrivalKind

# A window of Gamma gaps holds this share more or fewer requests than asked for at most.
TOLERANCE = 0.25
MAX_DRAWS = 10_000


def find_seed(seed: int, cv: float, requests: int, warmup_requests: int) -> int:
    """A seed whose window, at one request a second, holds about `requests`: bursts make that rare.

    The same for the same arguments; BenchError where no draw has about so many.
    """
    phases = Phases(float(warmup_requests), float(requests), 0.0)
    process = Process(ArrivalKind.GAMMA, 1.0, cv)
    for draw in range(MAX_DRAWS):
        found = mix_seed(seed, float(draw))
        times_s = plan_arrivals(process, phases, Seeds(found).generator(Purpose.ARRIVALS))
        count = int((times_s >= phases.warmup_s).sum())
        if abs(count - requests) <= TOLERANCE * requests:
            return found
    raise BenchError(
        f"{MAX_DRAWS} draws of gaps with CV {cv:g} never put about {requests} requests into a "
        "window; ask for more of them, or lower the CV"
    )
