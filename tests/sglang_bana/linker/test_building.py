"""A scheduler gets its side of the store where SGLang has built bana's linker, or a refusal."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from bana.slo.budget import Budget
from bana.slo.errors import SeamError
from bana.slo.limits import Slo
from sglang_bana.config import EngineConfig, InstanceSpec
from sglang_bana.engine.linker import building
from sglang_bana.engine.linker.building import BOOT_ID_FILE, build_restorer
from sglang_bana.engine.linker.promises import Promises
from sglang_bana.engine.linker.tree_side import TreeLinker

from .tree_stand import TreeStand

SPEC = InstanceSpec(
    name="i0",
    engine=EngineConfig(),
    secret="s",
    load_endpoint="ipc://l",
    parent_pid=1,
    run_dir="",
    store_endpoint="ipc://s",
)
BOOT_ID = Path(BOOT_ID_FILE).read_text(encoding="ascii").strip()
PROMISES = Promises(Slo("standard", 10.0, 1.0), BOOT_ID)


def scheduler_of(tree: Any) -> Any:
    return SimpleNamespace(tree_cache=tree, find_compute=lambda: None)


def test_the_tree_gets_a_driver_of_ours_over_the_same_linker() -> None:
    stand = TreeStand()
    stand.tree.init_cache_linker(stand.linker)
    built = build_restorer(scheduler_of(stand.tree), SPEC)
    assert built is not None
    assert built[0].linker is stand.linker
    assert type(stand.tree.linker) is TreeLinker
    assert stand.tree.linker.cache_linker is stand.linker


def test_without_a_store_nothing_is_touched() -> None:
    spec = msgspec.structs.replace(SPEC, store_endpoint="")
    assert build_restorer(scheduler_of(object()), spec) is None


def test_another_cache_is_a_refusal() -> None:
    for tree in (object(), SimpleNamespace(linker=None), SimpleNamespace(linker=object())):
        with pytest.raises(SeamError, match="ipc://s was asked for"):
            build_restorer(scheduler_of(tree), SPEC)


def test_a_hash_that_cannot_be_compiled_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> str:
        raise RuntimeError("no extension") from OSError("g++: not found")

    monkeypatch.setattr(building, "get_hash_str", fail)
    with pytest.raises(SeamError, match=r"does not load: g\+\+: not found; the store needs it"):
        building.load_page_hash()


def asking(params: Any = None, **more: Any) -> Any:
    return SimpleNamespace(sampling_params=SimpleNamespace(custom_params=params), **more)


def test_a_promise_is_read_wherever_it_is() -> None:
    now_s = time.monotonic()
    words = {
        "bana_slo_class": "standard",
        "bana_ttft_s": 3.0,
        "bana_tpot_s": 1.0,
        "bana_arrival_s": now_s - 1.0,
        "bana_deadline_s": now_s + 2.0,
        "bana_boot_id": BOOT_ID,
    }
    assert PROMISES.due_s(asking(words), now_s) == pytest.approx(now_s + 2.0)
    standing = SimpleNamespace(budget=Budget("standard", 5.0, 2.0, 1.0))
    assert PROMISES.due_s(asking(words, bana=standing), now_s) == 7.0


@pytest.mark.parametrize("params", [None, "words", {}, {"bana_ttft_s": "soon"}])
def test_what_is_no_promise_is_the_default_one(params: Any) -> None:
    assert PROMISES.due_s(asking(params), 100.0) == pytest.approx(110.0)
