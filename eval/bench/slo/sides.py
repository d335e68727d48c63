"""The servers of the slo benchmark: one instance a side, each on the same core.

All that take turns stay up; whoever is not asked sleeps. A side that an interrupted run no longer
needs is never started.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import psutil

from bana.eval.bench.children import ChildPlan, pin_process, running
from bana.eval.bench.clusters import (
    FLUSH_PATH,
    FRONT_DOOR,
    STOCK_SCHEDULER,
    Cluster,
    cluster,
    fetch,
)
from bana.eval.bench.errors import BenchError
from bana.eval.bench.harness import Session
from bana.eval.bench.placement import Placement
from bana.eval.bench.slo.settings import BUDGET, BUDGET_POLICIES, FIXTURE, SloSettings
from bana.eval.client.target import Target

FIXTURES_MODULE = "sglang_bana.engine.fixtures"
FIXTURE_SEED = 20
FIXTURE_TIMEOUT_S = 300.0


class SloSide(msgspec.Struct, frozen=True):
    """One way to schedule: bana's settings, then flags of SGLang."""

    name: str
    settings: tuple[str, ...]
    sglang_args: tuple[str, ...] = ()

    @property
    def is_bana(self) -> bool:
        return self.name == BUDGET

    def list_words(self, model: str) -> list[str]:
        """What `bana launch` is given."""
        sets = [word for setting in self.settings for word in ("--set", setting)]
        return ["--model", model, *sets, "--", *self.sglang_args]


def make_budget_side(settings: SloSettings) -> SloSide:
    """bana's policies; of SGLang's flags only those that the settings name."""
    return SloSide(BUDGET, BUDGET_POLICIES, (*_size_pool(settings), *settings.budget_args))


def make_stock_side(settings: SloSettings, order: str, tuned: Sequence[str]) -> SloSide:
    """SGLang's own scheduler with one of its orders."""
    args = (*_size_pool(settings), "--schedule-policy", order, *tuned)
    return SloSide(order, ("engine.scheduler=stock",), args)


def _size_pool(settings: SloSettings) -> tuple[str, str]:
    """As much KV as a point can fill, so that all sides find room beside each other."""
    return ("--max-total-tokens", str(settings.pool_tokens))


class Served:
    """A side whose server is up."""

    def __init__(self, side: SloSide, ready: Cluster) -> None:
        self.side = side
        self._ready = ready

    @property
    def target(self) -> Target:
        """Users of bana come through its front door, those of SGLang have none."""
        return self._ready.front_door if self.side.is_bana else self._ready.instances[0]

    def flush(self) -> None:
        """Empty its prefix cache; waits until nothing runs."""
        for instance in self._ready.instances:
            fetch(instance, FLUSH_PATH, b"")

    def require_undisturbed(self) -> None:
        """BenchError where something of it ended, or where a policy failed and SGLang decided."""
        self._ready.require_undisturbed()


class Fleet:
    """The sides that are up, by what they are; a side is started when it is first asked for."""

    def __init__(
        self, session: Session, settings: SloSettings, placement: Placement, folder: Path
    ) -> None:
        self._session = session
        self._settings = settings
        self._placement = placement
        self._folder = folder
        self._up: dict[SloSide, tuple[Served, contextlib.ExitStack]] = {}
        self._started = 0
        self._model = "" if settings.model == FIXTURE else settings.model

    def is_up(self, side: SloSide) -> bool:
        """Whether it has been started and not stopped since."""
        return side in self._up

    def reach(self, side: SloSide) -> Served:
        """Its server, started where it is not up."""
        if side not in self._up:
            self._up[side] = self._start(side)
        return self._up[side][0]

    def keep_only(self, sides: Sequence[SloSide]) -> None:
        """Stop all others."""
        for side in [side for side in self._up if side not in sides]:
            _, stack = self._up.pop(side)
            stack.close()

    def _start(self, side: SloSide) -> tuple[Served, contextlib.ExitStack]:
        timeout_s = self._settings.start_timeout_s
        require_memory(side.name, self._settings.side_bytes, psutil.virtual_memory().available)
        flags = " ".join(side.sglang_args)
        self._session.say(f"starting {side.name} with {flags} (up to {timeout_s:g} s)")
        self._started += 1
        words = side.list_words(self._find_model())
        name, cores = f"{side.name}-{self._started}", self._placement.server
        with contextlib.ExitStack() as stack:
            ready = stack.enter_context(cluster(name, words, cores, self._folder, timeout_s))
            _check_scheduler(side, ready)
            for pid in (ready.child.pid, ready.find_pid(FRONT_DOOR)):
                pin_process(pid, self._placement.client)
            return Served(side, ready), stack.pop_all()

    def _find_model(self) -> str:
        if not self._model:
            self._model = str(self._make_fixture())
        return self._model

    def _make_fixture(self) -> Path:
        """A small model with random weights."""
        out = self._folder / FIXTURE
        command = [sys.executable, "-m", FIXTURES_MODULE, "llama", str(FIXTURE_SEED), str(out)]
        log = self._folder / "fixture.log"
        said: list[str] = []
        with running(ChildPlan(FIXTURE, command, self._placement.client, log)) as child:
            status = child.follow(said.append, FIXTURE_TIMEOUT_S)
        if status != 0:
            raise BenchError(f"{FIXTURES_MODULE} ended with status {status}: {' '.join(said[-3:])}")
        return out


def require_memory(name: str, needed_bytes: int, available_bytes: int) -> None:
    """BenchError where a server would not find room beside those that are up."""
    if available_bytes < needed_bytes:
        raise BenchError(
            f"{name} would need about {needed_bytes / 2**30:.1f} GiB and "
            f"{available_bytes / 2**30:.1f} GiB are available: end what else runs here; what was "
            "measured is kept"
        )


def _check_scheduler(side: SloSide, ready: Cluster) -> None:
    """Each side must run what it stands for."""
    runs = ready.wait_proof().scheduler_class
    if (runs == STOCK_SCHEDULER) is side.is_bana:
        raise BenchError(f"{side.name} runs {runs}: the comparison would not be what it says")
