"""The servers of a benchmark of promises: one instance a side, the schedulers on the same core.

All that take turns stay up; whoever is not asked sleeps. A side that an interrupted run no longer
needs is never started.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import psutil

from bana.eval.bench.children import confined, pin_process
from bana.eval.bench.clusters import (
    FLUSH_PATH,
    INFO_PATH,
    STOCK_SCHEDULER,
    Cluster,
    cluster,
    fetch,
)
from bana.eval.bench.errors import BenchError
from bana.eval.bench.fixture import FIXTURE, make_fixture
from bana.eval.bench.harness import Session
from bana.eval.bench.placement import Placement, plan_router_placement
from bana.eval.bench.slo.settings import BUDGET, BUDGET_POLICIES, PromiseSettings
from bana.eval.client.target import Target


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


def make_budget_side(settings: PromiseSettings) -> SloSide:
    """bana's policies; of SGLang's flags only those that the settings name."""
    return SloSide(BUDGET, BUDGET_POLICIES, (*_size_pool(settings), *settings.budget_args))


def make_stock_side(settings: PromiseSettings, order: str, tuned: Sequence[str]) -> SloSide:
    """SGLang's own scheduler with one of its orders."""
    args = (*_size_pool(settings), "--schedule-policy", order, *tuned)
    return SloSide(order, ("engine.scheduler=stock",), args)


def _size_pool(settings: PromiseSettings) -> tuple[str, str]:
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

    @property
    def decision_log(self) -> Path:
        """Where its first instance writes what its policies decide, if it is told to."""
        return self._ready.decision_log

    def read_info(self) -> bytes:
        """What SGLang says of its first instance: `/server_info`."""
        return fetch(self._ready.instances[0], INFO_PATH)

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
        self, session: Session, settings: PromiseSettings, placement: Placement, folder: Path
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
            scheduler = _check_scheduler(side, ready)
            # Steps are alone on their core, as they are on a device.
            for process in ready.child.list_processes():
                if process.pid != scheduler:
                    pin_process(process.pid, self._placement.upstream)
            return Served(side, ready), stack.pop_all()

    def _find_model(self) -> str:
        if not self._model:
            self._model = str(make_fixture(self._folder, self._placement.client))
        return self._model


@contextlib.contextmanager
def open_fleet(session: Session, settings: PromiseSettings) -> Iterator[Fleet]:
    """No server yet, and none left at the end; the client on a core of its own."""
    placement = plan_router_placement()
    with tempfile.TemporaryDirectory(prefix="bb-") as name, confined(placement.client):
        fleet = Fleet(session, settings, placement, Path(name))
        try:
            yield fleet
        finally:
            fleet.keep_only(())


def require_memory(name: str, needed_bytes: int, available_bytes: int) -> None:
    """BenchError where a server would not find room beside those that are up."""
    if available_bytes < needed_bytes:
        raise BenchError(
            f"{name} would need about {needed_bytes / 2**30:.1f} GiB and "
            f"{available_bytes / 2**30:.1f} GiB are available: end what else runs here; what was "
            "measured is kept"
        )


def _check_scheduler(side: SloSide, ready: Cluster) -> int:
    """The process of its scheduler, which must run what the side stands for."""
    proof = ready.wait_proof()
    runs = proof.scheduler_class
    if (runs == STOCK_SCHEDULER) is side.is_bana:
        raise BenchError(f"{side.name} runs {runs}: the comparison would not be what it says")
    return proof.pid
