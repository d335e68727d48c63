"""Who is passed over while pages are on their way, between steps as the engine's scheduler does.

queued since the last step ─▶ asked, held      thought over ─▶ may run again
"""

from __future__ import annotations

from bana.eval.simulator.jobs import Job, Stage
from bana.eval.simulator.log import Happening
from bana.eval.simulator.machine import Machine


def end_holds(machine: Machine, now_s: float) -> bool:
    """Hold who has queued, and end whatever hold is worth it no more; whether any has ended."""
    restorer = machine.restorer
    if restorer is None:
        return False
    restorer.store.advance(now_s)
    _hold_queued(machine, now_s)
    if restorer.store.take_news():
        restorer.holds.refresh(now_s)
    ended = restorer.holds.take_over(now_s)
    for job, plan in ended:
        if plan.meet_page:
            restorer.part(job, plan.meet_page, now_s)
        machine.resume(job)
        machine.note(Happening.RESUMED, now_s, job)
    return bool(ended)


def _hold_queued(machine: Machine, now_s: float) -> None:
    restorer = machine.restorer
    assert restorer is not None
    for job in restorer.take_expected():
        if job.stage is not Stage.WAITING:
            continue
        machine.kv.rematch(job)
        want = restorer.ask(job, now_s)
        if want is not None:
            machine.leave_queue(job)
            job.stage = Stage.HELD
            restorer.holds.add(job, want, now_s)
            machine.note(Happening.HELD, now_s, job)


def meet(machine: Machine, job: Job, now_s: float) -> None:
    """A prompt that is computed up to what was fetched meanwhile gives up its seat, and looks at
    what has come. What it has computed stays cached.
    """
    restorer = machine.restorer
    assert restorer is not None
    machine.leave_queue(job)
    machine.kv.drop(job, job.done)
    job.stage = Stage.HELD
    restorer.holds.add(job, restorer.rejoin(job, now_s), now_s)
    machine.note(Happening.HELD, now_s, job)


def awaits_answer(machine: Machine, now_s: float) -> bool:
    """Whether the next step waits for what the store is about to answer."""
    restorer = machine.restorer
    if restorer is None or not restorer.store.patience_s:
        return False
    return restorer.holds.has_unanswered(now_s - restorer.store.patience_s)
