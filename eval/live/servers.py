"""Whom a measurement addresses: a server that runs, or a variant that is started for it.

A variant is a configuration file of `bana launch`, so that whatever can be launched can be
compared. Its servers are started afresh for every visit: their caches are empty by construction.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import msgspec

from bana.eval.bench.clusters import cluster, fetch
from bana.eval.bench.errors import BenchError
from bana.eval.client.target import Target
from bana.slo.errors import ConfigError

START_TIMEOUT_S = 900.0
FLUSH = "/flush_cache"
MODELS = "/v1/models"


class Server(Protocol):
    """One that answers now."""

    target: Target

    def clear_caches(self) -> str:
        """Forget cached prefixes where that may be asked for, and say in a word what was done."""


class Side(Protocol):
    """One of the systems that are measured; `name` tells them apart in reports."""

    name: str

    def open(self) -> AbstractContextManager[Server]:
        """Its server for the length of the block."""


class ModelEntry(msgspec.Struct, frozen=True):
    """One of the models that a server lists."""

    id: str


class ModelList(msgspec.Struct, frozen=True):
    """The answer of /v1/models."""

    data: tuple[ModelEntry, ...]


def find_model(target: Target) -> str:
    """The first model that a server lists; ConfigError when it does not say."""
    try:
        return msgspec.json.decode(fetch(target, MODELS), type=ModelList).data[0].id
    except (BenchError, msgspec.MsgspecError, IndexError) as error:
        raise ConfigError(
            f"{target.url} does not list its models ({error}); is the server up, and is this its "
            "URL? Otherwise name the model with --model"
        ) from error


class FlushableServer:
    """A server that can be told to flush, with the key of its administrative endpoints."""

    def __init__(self, target: Target, admin_key: str) -> None:
        self.target = target
        self._admin = Target(target.url, admin_key)

    def clear_caches(self) -> str:
        fetch(self._admin, FLUSH, b"{}")
        return "flushed"


class PlainServer:
    """A server whose caches nobody here may clear."""

    def __init__(self, target: Target) -> None:
        self.target = target

    def clear_caches(self) -> str:
        return "not cleared"


class GivenSide:
    """A server that somebody runs; with an admin key its caches are cleared between runs."""

    def __init__(self, name: str, target: Target, admin_key: str = "") -> None:
        self.name = name
        self._target = target
        self._admin_key = admin_key

    @contextlib.contextmanager
    def open(self) -> Iterator[Server]:
        if self._admin_key:
            yield FlushableServer(self._target, self._admin_key)
        else:
            yield PlainServer(self._target)


class StartedSide:
    """`bana launch --config FILE`, started for each visit on every core and stopped after it."""

    def __init__(self, name: str, config: Path, key: str = "") -> None:
        self.name = name
        self._config = config
        self._key = key

    @contextlib.contextmanager
    def open(self) -> Iterator[Server]:
        admin_key = secrets.token_hex(16)
        words = ["--config", str(self._config)]
        cores = frozenset(os.sched_getaffinity(0))
        with tempfile.TemporaryDirectory(prefix="bana-live-") as folder:
            # In the environment rather than on the command line, which every user can read.
            environment = {"BANA_AUTH_ADMIN_API_KEY": admin_key}
            started = cluster(self.name, words, cores, Path(folder), START_TIMEOUT_S, environment)
            with started as running:
                target = Target(running.front_door.url, self._key)
                yield FlushableServer(target, admin_key)


def name_sides(configs: list[Path]) -> list[str]:
    """A name for each configuration file: its stem; ConfigError where two would share one."""
    names = [config.stem for config in configs]
    for config in configs:
        if not config.is_file():
            raise ConfigError(
                f"no variant in {str(config)!r}: allowed are configuration files of `bana launch`"
            )
    if len(set(names)) < len(names):
        raise ConfigError(f"variants {names} must have distinct file names; rename one")
    return names
