"""What the clients of a simulated run saw: the same records as of a live one."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from bana.eval.requests import Ending, Observed, Offered
from bana.eval.simulator.jobs import Job

REJECTED_STATUS = 429
OK_STATUS = 200


def observe(offered: Offered, job: Job, beats_s: Sequence[float], until_s: float) -> Observed:
    """One request as its client saw it, who looked on until `until_s`."""
    end_s = until_s if job.end_s is None else job.end_s
    times_s = _list_tokens(job, beats_s, end_s)
    ending = job.ending or Ending.UNFINISHED
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


def _list_tokens(job: Job, beats_s: Sequence[float], end_s: float) -> tuple[float, ...]:
    """When its tokens came, as long as its client was there."""
    times_s: list[float] = []
    for burst in job.bursts:
        times_s.append(burst.at_s)
        times_s += beats_s[burst.first_beat : burst.end_beat]
    return tuple(times_s[: bisect.bisect_right(times_s, end_s)])
