"""Whom a measurement addresses, and whether caches are cleared between runs."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.request import urlopen

import pytest

from bana.eval.client.target import Target
from bana.eval.live.servers import GivenSide, name_sides
from bana.slo.errors import ConfigError


def test_caches_are_cleared_where_there_is_an_admin_key(stub_process) -> None:
    with stub_process() as url:
        with GivenSide("s", Target(url), "admin").open() as server:
            assert server.clear_caches() == "flushed"
        with GivenSide("s", Target(url)).open() as server:
            assert server.clear_caches() == "not cleared"
        with urlopen(f"{url}/stub/log", timeout=30) as answer:
            asked = [r for r in json.load(answer)["requests"] if r["path"] == "/flush_cache"]
    assert [r["headers"]["Authorization"] for r in asked] == ["Bearer admin"]


def test_variants_are_named_by_their_files(tmp_path: Path) -> None:
    files = [tmp_path / "a.toml", tmp_path / "b.toml", tmp_path / "other" / "a.toml"]
    files[2].parent.mkdir()
    for file in files:
        file.touch()
    assert name_sides(files[:2]) == ["a", "b"]
    with pytest.raises(ConfigError, match="distinct file names"):
        name_sides(files)
    with pytest.raises(ConfigError, match="no variant in"):
        name_sides([tmp_path / "none.toml"])
