"""What the clients of a simulated run saw: the same records as of a live one."""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Sequence

from bana.eval.requests import Ending, Observed, Offered
from bana.eval.simulator.jobs import Job
from bana.eval.simulator.showing import Showing

REJECTED_STATUS = 429
OK_STATUS = 200


@dataclasses.dataclass(frozen=True)
class ClientView:
    """What all clients see by: when decode steps ended, when steps show, and who looks how long."""

    beats_s: Sequence[float]
    showing: Showing
    until_s: float


def observe(offered: Offered, job: Job, view: ClientView) -> Observed:
    """One request as its client saw it, who looked on until `view.until_s`."""
    ending = job.ending or Ending.UNFINISHED
    end_s = view.until_s if job.end_s is None else job.end_s
    if ending is Ending.FINISHED:
        [end_s] = view.showing.find_seen([end_s])
    times_s = _list_tokens(job, view, end_s)
    return Observed(
        index=offered.index,
        due_s=offered.due_s,
        ending=ending,
        slo_class=offered.slo_class,
        limits=offered.limits,
        phase=offered.phase,
        prompt_tokens=offered.prompt_tokens,
        asked_tokens=offered.output_tokens,
        sent_s=offered.due_s,
        first_s=times_s[0] if times_s else None,
        last_s=times_s[-1] if times_s else None,
        end_s=end_s,
        output_tokens=len(times_s),
        event_times_s=times_s,
        event_tokens=(1,) * len(times_s),
        status=REJECTED_STATUS if ending is Ending.REJECTED else OK_STATUS,
        cached_tokens=job.cached,
        family=offered.family,
        session=offered.session,
    )


def _list_tokens(job: Job, view: ClientView, end_s: float) -> tuple[float, ...]:
    """When its tokens came, as long as its client was there."""
    times_s: list[float] = []
    for burst in job.bursts:
        times_s.append(burst.at_s)
        times_s += view.beats_s[burst.first_beat : burst.end_beat]
    seen_s = view.showing.find_seen(times_s)
    return tuple(seen_s[: bisect.bisect_right(seen_s, end_s)])
