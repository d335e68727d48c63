"""Whatever changes the bytes of KV changes the namespace; what does not, does not."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bana.radix_global.keys import Namespace
from bana.slo.errors import ConfigError
from sglang_bana.engine.linker import identity
from sglang_bana.engine.linker.identity import (
    CHANGING_FIELDS,
    Shard,
    describe_pages,
    move_epoch,
    renew_epoch,
)

from .stand import layout_of

SHARD = Shard(tp_rank=0, tp_size=1, first_layer=0, end_layer=3)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "README.md").write_text("about")
    return folder


def arguments(model: Path | str, **changed: Any) -> Any:
    usual = dict.fromkeys(CHANGING_FIELDS)
    return SimpleNamespace(
        **(usual | {"model_path": str(model), "revision": None, "lora_paths": None} | changed)
    )


def describe(model: Path | str, **changed: Any) -> Namespace:
    return describe_pages(arguments(model, **changed), SHARD, layout_of(), "salt")


def test_the_same_model_has_the_same_namespace(model: Path) -> None:
    assert describe(model) == describe(model)
    (model / "README.md").write_text("other words")
    assert describe(model) == describe(model)


@pytest.mark.parametrize("field", CHANGING_FIELDS)
def test_each_argument_that_changes_numbers_counts(model: Path, field: str) -> None:
    assert describe(model, **{field: "other"}).digest() != describe(model).digest()


@pytest.mark.parametrize("size", [7, 3_000_000])
def test_other_weights_of_the_same_time_count(model: Path, size: int) -> None:
    weights = model / "model.safetensors"
    found = set()
    for fill in (b"a", b"b"):
        weights.write_bytes(fill * size)
        os.utime(weights, ns=(1, 1))
        found.add(describe(model).digest())
    assert len(found) == 2


def test_every_byte_of_a_small_file_counts(model: Path) -> None:
    config = model / "config.json"
    found = set()
    for place in (0, 70_000, 150_000):
        text = bytearray(b" " * 150_001)
        text[place] = ord("x")
        config.write_bytes(text)
        os.utime(config, ns=(1, 1))
        found.add(describe(model).digest())
    assert len(found) == 3


def test_other_weights_of_the_same_name_and_size_count(model: Path) -> None:
    before = describe(model)
    weights = model / "model.safetensors"
    status = weights.stat()
    weights.write_bytes(b"WEIGHTS")
    os.utime(weights, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert describe(model).digest() != before.digest()


def test_a_hub_s_content_hash_counts_and_its_times_do_not(tmp_path: Path) -> None:
    digests = set()
    for host in ("a", "b"):
        blobs, snapshot = tmp_path / host / "blobs", tmp_path / host / "snapshots" / "main"
        blobs.mkdir(parents=True)
        snapshot.mkdir(parents=True)
        (blobs / "5e1f").write_bytes(b"weights")
        os.utime(blobs / "5e1f", ns=(0, hash(host) % 10**9))
        (snapshot / "model.safetensors").symlink_to(blobs / "5e1f")
        digests.add(describe(snapshot).digest())
    assert len(digests) == 1


def test_a_model_of_the_hub_is_found_in_its_cache(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        identity, "try_to_load_from_cache", lambda *_, **__: str(model / "config.json")
    )
    found = describe("org/model")
    assert found.revision == describe(model).revision
    assert found.model == "model"


def test_weights_that_cannot_be_told_apart_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "try_to_load_from_cache", lambda *_, **__: None)
    with pytest.raises(ConfigError, match="download the model"):
        describe("org/model")
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ConfigError, match="no file of weights"):
        describe(empty)


def test_one_file_is_a_model(model: Path) -> None:
    assert describe(model / "model.safetensors").model == "model.safetensors"


def test_adapters_named_at_start_share_with_nobody(model: Path) -> None:
    left, right = (describe(model, lora_paths=["x"]) for _ in range(2))
    assert left.weights_epoch != right.weights_epoch
    assert describe(model).weights_epoch == ""


def test_every_change_of_weights_is_unique(model: Path) -> None:
    start = describe(model)
    epochs = {renew_epoch(start).weights_epoch for _ in range(3)}
    assert len(epochs) == 3
    assert start.weights_epoch not in epochs
    assert renew_epoch(start).revision == start.revision


def test_who_has_seen_the_same_changes_of_adapters_shares(model: Path) -> None:
    epochs = [describe(model), describe(model)]
    for _ in range(2):
        epochs = [move_epoch(space) for space in epochs]
        assert epochs[0] == epochs[1]
    assert len({describe(model), epochs[0], move_epoch(epochs[0])}) == 3
    left, right = (move_epoch(renew_epoch(describe(model))) for _ in range(2))
    assert left != right


def test_ranks_and_layouts_do_not_mix(model: Path) -> None:
    given = arguments(model)
    second = Shard(tp_rank=1, tp_size=2, first_layer=0, end_layer=3)
    digests = {
        describe_pages(given, SHARD, layout_of(), "").digest(),
        describe_pages(given, SHARD, layout_of(), "salt").digest(),
        describe_pages(given, second, layout_of(), "").digest(),
        describe_pages(given, SHARD, layout_of(page_tokens=8), "").digest(),
        describe_pages(given, SHARD, layout_of(heads=4), "").digest(),
    }
    assert len(digests) == 5
