"""A request inside the simulated instance."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from bana.eval.requests import Ending
from bana.eval.simulator.store.want import Want
from bana.slo.budget import Budget


class Stage(StrEnum):
    """Where a request is.

    waiting ──first chunk──▶ started ──last chunk──▶ running ──▶ over
     ▲   ▲                      │                       │
    held └──────── retracted ───┴───────────────────────┘
    """

    HELD = "held"
    WAITING = "waiting"
    STARTED = "started"
    RUNNING = "running"
    OVER = "over"


class Burst(msgspec.Struct):
    """Tokens that came one after the other: the first from a prompt step, the rest from beats.

    `first_beat` and `end_beat` number the decode steps; the burst goes on while `end_beat` is None.
    """

    at_s: float
    first_beat: int
    end_beat: int | None = None


class Job:
    """One request, changed as it is served. Lengths in tokens.

    `target` is what must be computed before the next token: the prompt, and after a retraction the
    tokens that came as well. `done` of it is in the KV cache. Of one that is not begun `matched` is
    at hand, the last `loaded` pages of that in the arena for its `want`. One that is computed up to
    `meet` tokens meanwhile has its end fetched for its `tail`. `doubt` is the factor by which
    predictions about this request are wrong.
    """

    __slots__ = (
        "budget",
        "bursts",
        "cached",
        "demoted",
        "done",
        "doubt",
        "emitted",
        "end_s",
        "ending",
        "index",
        "is_open_ended",
        "loaded",
        "locked",
        "matched",
        "meet",
        "output",
        "path",
        "prompt",
        "stage",
        "tail",
        "target",
        "tree_pages",
        "want",
    )

    def __init__(self, index: int, budget: Budget, prompt: int, output: int) -> None:
        self.index = index
        self.budget = budget
        self.prompt = prompt
        self.output = output
        self.is_open_ended = False
        self.doubt = 1.0
        self.path: tuple[int, ...] = ()
        self.stage = Stage.WAITING
        self.demoted = False
        self.target = prompt
        self.done = 0
        self.matched = 0
        self.loaded = 0
        self.want: Want | None = None
        self.tail: Want | None = None
        self.meet = 0
        self.cached: int | None = None
        self.emitted = 0
        self.bursts: list[Burst] = []
        self.ending: Ending | None = None
        self.end_s: float | None = None
        # What it holds of the KV cache.
        self.locked: tuple[int, ...] = ()
        self.tree_pages = 0

    @property
    def remaining(self) -> int:
        """Prompt tokens still to compute, those that are at hand now left out."""
        return self.target - max(self.done, self.matched)

    @property
    def outputs_left(self) -> int:
        """Tokens still to come."""
        return self.output - self.emitted

    @property
    def length(self) -> int:
        """Tokens of prompt and answer that there are."""
        return self.prompt + self.emitted
