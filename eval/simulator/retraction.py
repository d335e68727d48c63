"""Room for the next decode step: where there is none, some requests give back what they hold.

As SGLang does: of those that decode, the one with the fewest tokens goes first, among equals the
one with the longest prompt; it queues again, and its tokens are computed anew with its prompt.
"""

from __future__ import annotations

from bana.eval.simulator.jobs import Job
from bana.eval.simulator.log import Happening
from bana.eval.simulator.machine import Machine
from bana.eval.simulator.ratio import Lengths


def has_room(machine: Machine) -> bool:
    """Whether every decoding request finds a page for its next token."""
    return machine.running.count_pages_needed() <= machine.kv.available_pages


def make_room(machine: Machine, now_s: float) -> None:
    """Retract until the rest can go on. The last one that decodes stays: half-done prompts go."""
    if has_room(machine):
        machine.ratio.decay()
        return
    kept = sorted(
        machine.running.jobs.values(),
        key=lambda job: (machine.running.count_emitted(job), -job.prompt),
        reverse=True,
    )
    while len(kept) > 1 and not has_room(machine):
        retract(machine, kept.pop(), now_s)
    while not has_room(machine):
        yield_worst(machine, now_s)
    machine.ratio.relearn([Lengths(machine.running.count_emitted(j), j.output) for j in kept])


def retract(machine: Machine, job: Job, now_s: float) -> None:
    """A decoding request queues again with what it has got."""
    machine.running.leave(job)
    machine.kv.drop(job, job.length - 1)
    job.target = job.length
    machine.queue(job)
    machine.note(Happening.RETRACTED, now_s, job)


def yield_worst(machine: Machine, now_s: float) -> None:
    """The half-done prompt that is due last waits anew."""
    started = machine.waiting.list_started()
    assert started, "a request that fits alone found no room in an otherwise empty KV cache"
    machine.yield_prompt(max(started, key=lambda j: (j.budget.deadline_s, j.index)), now_s)
