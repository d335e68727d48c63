"""The clusters of the cluster_cache benchmark and the ways into them.

client ─┬─▶ bana's front door ──┬─▶ two instances ── a store, or none
        └─▶ SGLang's router ────┘

All clusters stay up, the idle ones asleep. A point opens its side anew: SGLang's router learns only
by what it sends, so that it must not remember what was sent before caches were emptied.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import msgspec
import psutil

from bana.eval.bench.children import bana_command
from bana.eval.bench.cluster_cache.settings import (
    INSTANCES,
    PREDICTED,
    PRIVATE,
    CacheSide,
    ClusterCacheSettings,
)
from bana.eval.bench.clusters import FLUSH_PATH, Cluster, StatusEntry, cluster, fetch
from bana.eval.bench.config_file import write_config
from bana.eval.bench.errors import BenchError
from bana.eval.bench.fixture import FIXTURE, make_fixture
from bana.eval.bench.harness import Session
from bana.eval.bench.quiet import QuietWatch
from bana.eval.bench.routers import sglang_router
from bana.eval.bench.slo.sides import require_memory
from bana.eval.client.target import Target

COMMAND_TIMEOUT_S = 60.0
POLL_S = 0.25
ATTACHED = "attached"
# Nothing has happened in a store for so long: its savers are done.
QUIET_S = 2.0
ADMIN_KEY = "BANA_AUTH_ADMIN_API_KEY"
NEVER_LATE = {"rank": 0, "ttft_ms": 600_000.0, "tpot_ms": 60_000.0}


class Served:
    """A cluster that is up, with the key of its administrator."""

    def __init__(self, ready: Cluster, run_dir: Path, settings: ClusterCacheSettings) -> None:
        self.ready = ready
        self._run_dir = run_dir
        self._settings = settings

    @property
    def front_door(self) -> Target:
        return self.ready.front_door

    def command(self, *words: str) -> None:
        """A bana command about this cluster; BenchError when it fails."""
        argv = bana_command(*words, "--run-dir", str(self._run_dir))
        done = subprocess.run(argv, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S)
        if done.returncode:
            said = (done.stderr or done.stdout).strip()[-500:]
            raise BenchError(f"bana {' '.join(words)} ended with {done.returncode}: {said}")

    def empty(self, admin: Target) -> None:
        """Nothing is cached anywhere afterwards."""
        self.settle()
        # Through the front door, which forgets what it believes to be cached where.
        fetch(admin, FLUSH_PATH, b"")
        if self.read_status().store is not None:
            self.settle()
            self.command("store", "clear", "--yes")

    def settle(self) -> None:
        """Return when the store has had nothing to do for a while; at once without one."""
        if self.read_status().store is None:
            return
        limit_s = self._settings.settle_timeout_s
        watch, end_s = QuietWatch(time.monotonic(), QUIET_S), time.monotonic() + limit_s
        while not watch.note(self.read_status(), time.monotonic()):
            if time.monotonic() > end_s:
                raise BenchError(f"the store was not done with its work within {limit_s:g} s")
            time.sleep(POLL_S)

    def await_store(self) -> None:
        """Return when both instances have their store, which has told so."""
        end_s = time.monotonic() + self._settings.settle_timeout_s
        while not has_store(self.read_status()):
            if time.monotonic() > end_s:
                raise BenchError("the instances did not get their store; see the run's logs")
            time.sleep(POLL_S)

    def read_status(self) -> StatusEntry:
        """What its front door says of it."""
        return self.ready.read_status()

    def require_undisturbed(self) -> None:
        """BenchError where anything ended, or an engine's side of the store went wrong."""
        self.ready.require_undisturbed()
        for instance in self.read_status().instances:
            counts = {} if instance.link is None else instance.link.counts
            wrong = {name: counts[name] for name in ("faults", "failed_loads") if counts.get(name)}
            if wrong:
                raise BenchError(f"{instance.name}'s side of the store counts {wrong}; see its log")


class Door(msgspec.Struct, frozen=True):
    """An open side: where its requests go, and whose they are. Everything behind it is empty."""

    side: CacheSide
    target: Target
    served: Served


class Doors(Protocol):
    """Sides to open, as `Fleet` does."""

    def open(self, side: CacheSide, threshold: int) -> AbstractContextManager[Door]: ...


class Fleet:
    """The clusters that are up; one is started when it is first asked for."""

    def __init__(self, session: Session, settings: ClusterCacheSettings, folder: Path) -> None:
        self._session = session
        self._settings = settings
        self._folder = folder
        self._stack = contextlib.ExitStack()
        self._up: dict[str, Served] = {}
        self._admin_key = secrets.token_hex(16)
        self._cores = frozenset(os.sched_getaffinity(0))
        self._model = "" if settings.model == FIXTURE else settings.model

    @contextlib.contextmanager
    def open(self, side: CacheSide, threshold: int) -> Iterator[Door]:
        """The side with nothing cached; `threshold` is that of SGLang's cache-aware policy."""
        served = self.reach(side.cluster)
        with contextlib.ExitStack() as stack:
            target = served.front_door
            if side.router_policy:
                words = list_router_words(side, threshold)
                instances = served.ready.instances
                started = sglang_router(words, instances, self._cores, self._folder)
                _, target = stack.enter_context(started)
            served.empty(Target(served.front_door.url, self._admin_key))
            yield Door(side, target, served)
            served.require_undisturbed()

    def reach(self, name: str) -> Served:
        """The cluster of that name, started where it is not up."""
        if name not in self._up:
            self._up[name] = self._start(name)
        return self._up[name]

    def close(self) -> None:
        """Stop everything."""
        self._stack.close()

    def _start(self, name: str) -> Served:
        settings = self._settings
        needed = INSTANCES * settings.instance_bytes + settings.arena_bytes
        require_memory(name, needed, psutil.virtual_memory().available)
        timeout_s = settings.start_timeout_s
        self._session.say(f"starting two instances, {name} (up to {timeout_s:g} s)")
        file = self._folder / f"{name}.toml"
        write_config(file, configure(name, settings))
        words = ["--config", str(file), "--model", self._find_model(), "--", *list_flags(settings)]
        # In the environment rather than on the command line, which every user can read.
        environment = {ADMIN_KEY: self._admin_key}
        started = cluster(name, words, self._cores, self._folder, timeout_s, environment)
        ready = self._stack.enter_context(started)
        served = Served(ready, self._folder / name, settings)
        if name != PRIVATE:
            served.await_store()
        return served

    def _find_model(self) -> str:
        if not self._model:
            self._model = str(make_fixture(self._folder, self._cores))
        return self._model


@contextlib.contextmanager
def open_fleet(session: Session, settings: ClusterCacheSettings) -> Iterator[tuple[Fleet, Path]]:
    """No cluster yet, and none left at the end; the folder is for whatever is written."""
    with tempfile.TemporaryDirectory(prefix="bb-") as name:
        fleet = Fleet(session, settings, Path(name))
        try:
            yield fleet, Path(name)
        finally:
            fleet.close()


def has_store(status: StatusEntry) -> bool:
    """Whether a store has spoken, and every instance is attached to it."""
    links = [instance.link for instance in status.instances]
    return status.store is not None and all(
        link is not None and link.state == ATTACHED for link in links
    )


def configure(name: str, settings: ClusterCacheSettings) -> dict[str, dict[str, object]]:
    """What a cluster is launched with, besides flags of SGLang."""
    is_shared = name != PRIVATE
    return {
        "launch": {"instances": INSTANCES},
        "routing": {"policy": "predicted_finish" if name == PREDICTED else "least_load"},
        # SGLang's order, decided by bana: so that instances tell what computing costs.
        "scheduling": {"order": "fcfs", "governor": "stock"},
        "slo": {"default_class": "patient", "classes": {"patient": NEVER_LATE}},
        "store": {"enabled": is_shared, "arena_bytes": settings.arena_bytes},
    }


def list_flags(settings: ClusterCacheSettings) -> list[str]:
    """Flags of SGLang, the same for all instances."""
    flags = {"--page-size": settings.page_tokens, "--max-total-tokens": settings.pool_tokens}
    return [str(word) for pair in flags.items() for word in pair]


def list_router_words(side: CacheSide, threshold: int) -> Sequence[str]:
    """Flags of SGLang's router."""
    words = ["--policy", side.router_policy]
    if side.router_policy == "cache_aware":
        words += ["--balance-abs-threshold", str(threshold)]
    return words
