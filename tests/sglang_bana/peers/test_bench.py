"""The comparison runs small, with what SGLang brings; LMCache is where its environment is."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

import msgspec
import pytest

from bana.slo.errors import ConfigError

with warnings.catch_warnings():
    # SGLang warns at import about accelerators that are not there.
    warnings.simplefilter("ignore")
    from sglang_bana.engine.peers.bench import PeerPlan, PeerSamples, compare_peers, main
    from sglang_bana.engine.peers.lmcache_disk import open_lmcache_disk
from sglang_bana.engine.peers.reading import PageShape, ReadPlan, WrongPage

SHAPE = PageShape(layers=2, heads=2, head_dim=8)
READING = ReadPlan(SHAPE, 40 * SHAPE.page_bytes, 7 * SHAPE.page_bytes, max_threads=2, seed=1)
PLAN = PeerPlan(READING, threads=(1, 2), pairs=2)
LMCACHE = os.environ.get("BANA_LMCACHE_PYTHON", ".venv-lmcache/bin/python")


def test_every_peer_is_read_beside_bana() -> None:
    said: list[str] = []
    samples = compare_peers(PLAN, None, said.append)
    peers = ("hicache_file", "hicache_file_get")
    assert set(samples) == {f"{peer}/{threads}" for peer in peers for threads in (1, 2)}
    for both in samples.values():
        assert len(both.bana) == len(both.peer) == 2
        assert min(both.bana + both.peer) > 0
    assert [line.partition(":")[0] for line in said] == ["bana", *peers]


def test_the_command_writes_the_samples_or_says_what_it_cannot_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out.json"

    def run(plan: bytes, at: Path = output) -> int:
        argv = ["bench", "--json", str(at), "--plan", plan.decode()]
        monkeypatch.setattr(sys, "argv", argv)
        return main()

    assert run(msgspec.json.encode(PLAN)) == 0
    assert len(msgspec.json.decode(output.read_bytes(), type=dict[str, PeerSamples])) == 4
    capfd.readouterr()
    assert run(b"{}") == 2
    assert "--plan" in capfd.readouterr().err
    assert run(msgspec.json.encode(PLAN), tmp_path / "nowhere" / "out.json") == 2
    assert "--json" in capfd.readouterr().err


@pytest.mark.parametrize(
    "changes",
    [{"pairs": 0}, {"threads": ()}, {"threads": (0,)}, {"threads": (1, 3)}],
)
def test_a_comparison_of_nothing_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="must be"):
        compare_peers(msgspec.structs.replace(PLAN, **changes), None, print)


@pytest.mark.parametrize(
    "changes",
    [
        {"buffer_bytes": SHAPE.page_bytes},
        {"total_bytes": SHAPE.page_bytes},
        {"shape": PageShape(layers=0, heads=2, head_dim=8)},
        {"shape": PageShape(layers=1, heads=1, head_dim=1, tokens=1)},
    ],
)
def test_pages_that_do_not_fit_are_refused(changes: dict[str, object]) -> None:
    reading = msgspec.structs.replace(READING, **changes)
    with pytest.raises(ConfigError, match="must have"):
        compare_peers(msgspec.structs.replace(PLAN, reading=reading), None, print)


def test_an_interpreter_without_lmcache_says_so(tmp_path: Path) -> None:
    side = open_lmcache_disk(READING, tmp_path / "lmcache", Path(sys.executable))
    with pytest.raises(WrongPage, match="No module named 'lmcache'"), side:
        pass


@pytest.mark.skipif(not Path(LMCACHE).is_file(), reason="make venv-lmcache builds what it needs")
def test_lmcache_reads_what_was_written_to_it(tmp_path: Path) -> None:
    """It holds some pages against their contents before it answers at all."""
    with open_lmcache_disk(READING, tmp_path / "lmcache", Path(LMCACHE).absolute()) as side:
        assert side.time_round(1) > 0
        assert side.time_round(2) > 0
        pages = list((tmp_path / "lmcache" / "pages").rglob("*.pt"))
        assert len(pages) == READING.pages
        assert {page.stat().st_size for page in pages} == {SHAPE.page_bytes}
