"""What of copies to a device needs none to be tried."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from sglang_bana.engine.linker.device_pages import STAGED_PAGES, DeviceCopy


def test_a_layer_that_never_began_fences_nothing() -> None:
    owner: Any = SimpleNamespace(layout=None)
    DeviceCopy(owner, [], []).fence(3)


def test_pages_are_staged_a_few_at_a_time_and_each_once() -> None:
    owner: Any = SimpleNamespace(layout=None)
    pages = list(range(2 * STAGED_PAGES + 3))
    lots = list(DeviceCopy(owner, pages, pages)._split())
    assert [len(index) for index, _ in lots] == [STAGED_PAGES, STAGED_PAGES, 3]
    assert [page for index, _ in lots for page in index] == pages
    assert all(index == hosts for index, hosts in lots)
