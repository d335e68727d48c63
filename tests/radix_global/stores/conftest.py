"""Directory stores for tests: small, opened again at will, closed at the end."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest

from bana.radix_global.stores.directory import DirectoryStore
from bana.radix_global.stores.options import DirectoryOptions
from bana.radix_global.stores.store import Refresh, RefreshOutcome, Store

OpenStore = Callable[..., DirectoryStore]
Recover = Callable[[Store], set[bytes]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the directory store of a test lives."""
    return tmp_path / "tier"


@pytest.fixture
def open_store(folder: Path) -> Iterator[OpenStore]:
    """A function: options in, a store on `folder` (or another place) out, not yet refreshed."""
    opened: list[DirectoryStore] = []
    seeds = count()

    def open_one(at: Path = folder, **options: Any) -> DirectoryStore:
        bounds = {"capacity_bytes": 2**20, "segment_bytes": 2**16, **options}
        store = DirectoryStore(at, DirectoryOptions(**bounds), Random(next(seeds)))
        opened.append(store)
        return store

    yield open_one
    for store in opened:
        store.close()


@pytest.fixture
def recover() -> Recover:
    """A function: refreshes a store until it is whole and answers which keys were found."""

    def refresh_all(store: Store) -> set[bytes]:
        found: set[bytes] = set()
        for _ in range(10_000):
            refresh: Refresh = store.refresh()
            found |= {page.key for page in refresh.found}
            found -= set(refresh.lost)
            assert refresh.outcome is not RefreshOutcome.FAILED
            if refresh.outcome is RefreshOutcome.WHOLE:
                return found
        raise AssertionError("never whole")

    return refresh_all


@pytest.fixture
def count_open_files() -> Callable[[], int]:
    """A function: how many descriptors this process has open."""
    return lambda: len(os.listdir("/proc/self/fd"))
