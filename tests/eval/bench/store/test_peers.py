"""What the peers' samples become, and what is said where LMCache is not installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bana.eval.bench.harness import BenchRequest, Interruption, Scale, Session
from bana.eval.bench.samples import join_samples, pair_samples
from bana.eval.bench.store import peers
from bana.eval.bench.store.peers import (
    SCALES,
    PeerSamples,
    describe_peers,
    find_lmcache,
    judge_peers,
    measure_peers,
)
from bana.eval.bench.trials import open_trials
from bana.slo.errors import ConfigError

SAMPLES = {
    "lmcache_disk/1": PeerSamples([6.0, 8.0, 7.0], [2.0, 4.0, 3.5]),
    "hicache_file/2": PeerSamples([1.0, 1.0], [1.0, 1.0]),
    "hicache_file_get/2": PeerSamples([3.0, 3.0], [4.0, 4.0]),
}


def test_samples_survive_an_interruption() -> None:
    cases = pair_samples(join_samples(SAMPLES), PeerSamples, "bytes_per_s")
    assert list(cases) == list(SAMPLES)
    seen = [(p.first["bytes_per_s"], p.second["bytes_per_s"]) for p in cases["lmcache_disk/1"]]
    assert seen == [(6.0, 2.0), (8.0, 4.0), (7.0, 3.5)]


def test_like_is_held_against_its_aim_and_the_bare_call_against_none() -> None:
    figures = judge_peers(join_samples(SAMPLES), 4096, seed=0)
    lmcache = figures["vs_lmcache_disk[4096b_1t]"]
    assert (lmcache.value, lmcache.low, lmcache.aim, lmcache.met) == (2.0, 2.0, ">= 1.5", True)
    assert figures["vs_hicache_file[4096b_2t]"].met is False
    bare = figures["vs_hicache_file_get[4096b_2t]"]
    assert (bare.value, bare.aim, bare.met) == (0.75, None, None)
    assert figures["lmcache_disk_bytes_per_s[4096b_1t]"].value == 3.5
    assert figures["directory_bytes_per_s[4096b_2t]"].value == 2.0


def test_an_interpreter_that_was_named_must_be_there(tmp_path: Path) -> None:
    python = tmp_path / "python"
    with pytest.raises(ConfigError, match="BANA_LMCACHE_PYTHON"):
        find_lmcache({"BANA_LMCACHE_PYTHON": str(python)})
    python.touch()
    assert find_lmcache({"BANA_LMCACHE_PYTHON": str(python)}) == python


def test_the_environment_that_make_builds_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_lmcache({}) is None
    built = tmp_path / ".venv-lmcache" / "bin" / "python"
    built.parent.mkdir(parents=True)
    built.touch()
    assert find_lmcache({}) == built


@pytest.mark.parametrize("is_there", [True, False])
def test_what_cannot_be_measured_is_told_and_has_no_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    asked: list[Sequence[str]] = []

    def answer(_: Session, module: str, arguments: Sequence[str]) -> bytes:
        assert module == "sglang_bana.engine.peers.bench"
        asked.append(arguments)
        with_lmcache = "--lmcache-python" in arguments
        told = {k: v for k, v in SAMPLES.items() if with_lmcache or "lmcache" not in k}
        return msgspec.json.encode(told)

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BANA_LMCACHE_PYTHON", raising=False)
    if is_there:
        (tmp_path / "python").touch()
        monkeypatch.setenv("BANA_LMCACHE_PYTHON", str(tmp_path / "python"))
    monkeypatch.setattr(peers, "run_apart", answer)
    said: list[str] = []
    request = BenchRequest(tmp_path / "out.json", scale=Scale.QUICK, seed=7)
    with open_trials(tmp_path / "trials.jsonl", "key") as log:
        session = Session(request, log, said.append, Interruption())
        figures: Mapping[str, Any] = measure_peers(session)
        assert set(measure_peers(session)) == set(figures)
    assert len(asked) == len(SCALES[Scale.QUICK].shapes)
    plan = msgspec.json.decode(asked[0][1])
    assert plan["reading"]["seed"] == 7
    assert ("vs_lmcache_disk[368640b_1t]" in figures) is is_there
    assert "vs_hicache_file[368640b_2t]" in figures
    assert ("not measured" in str(session.notes.get("vs_lmcache_disk"))) is not is_there
    assert any("vs_lmcache_disk: not measured" in line for line in said) is not is_there


@pytest.mark.parametrize("scale", [Scale.DEFAULT, Scale.FULL])
def test_verdicts_rest_on_enough_pairs_and_the_settings_are_told(scale: Scale) -> None:
    assert SCALES[scale].pairs >= 5
    assert {shape.page_bytes for shape in SCALES[scale].shapes} == {65_536, 368_640, 2_097_152}
    assert msgspec.json.encode(describe_peers(scale))
