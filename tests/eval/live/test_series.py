"""Sides take turns, are offered and promised the same, and everything measured is kept."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from bana.eval.client.target import Target
from bana.eval.client.watch import NoWatch
from bana.eval.live import archive
from bana.eval.live.archive import compose_series, open_archive, read_side
from bana.eval.live.joining import Measured
from bana.eval.live.measure import mix_seed
from bana.eval.live.series import Series, SeriesRunner
from bana.eval.live.servers import GivenSide, PlainServer, Server
from bana.eval.live.settings import read_live_spec
from bana.eval.live.spec import LiveSpec
from bana.eval.summary import Verdict
from bana.slo.errors import ConfigError

SHORT: dict[str, object] = {
    "workload.arrivals.rate_rps": 20.0,
    "workload.arrivals.duration_s": 1.5,
    "workload.arrivals.warmup_s": 0.2,
    "workload.prompts.input_tokens": {"kind": "constant", "tokens": 8},
    "workload.prompts.output_tokens": {"kind": "constant", "tokens": 4},
    "client.probe_rps": 0.0,
    "client.sample_interval_s": 0.0,
    # A busy machine is no reason to prove nothing here.
    "client.lateness_limit_ms": 60_000.0,
}
PROMISE = {"limits.default.ttft_ms": 60_000.0}


class NotedSide:
    """A given server that notes each visit."""

    def __init__(self, name: str, url: str, visits: list[str]) -> None:
        self.name = name
        self._target = Target(url)
        self._visits = visits

    @contextlib.contextmanager
    def open(self) -> Iterator[Server]:
        self._visits.append(self.name)
        yield PlainServer(self._target)


def spec_of(**changes: object) -> LiveSpec:
    entries = {key.replace("__", "."): value for key, value in changes.items()}
    return read_live_spec(None, {**SHORT, **PROMISE, **entries})


def run(spec: LiveSpec, *sides: object, folder: Path) -> Series:
    with open_archive(folder) as kept:
        series = SeriesRunner(spec, sides, NoWatch(), kept.keep).run()  # type: ignore[arg-type]
        kept.conclude(series)
    return series


def test_sides_take_turns_and_are_offered_the_same(stub_process, tmp_path: Path) -> None:
    visits: list[str] = []
    with stub_process(chunks=4) as url:
        sides = [NotedSide(name, url, visits) for name in ("a", "b")]
        series = run(spec_of(seeds=[0, 1]), *sides, folder=tmp_path / "out")
    assert visits == ["a", "b", "b", "a"]
    offered = {
        (m.point.side, m.point.seed): m.stored.record.about.fingerprint for m in series.measured
    }
    assert offered["a", 0] == offered["b", 0]
    assert offered["a", 0] != offered["a", 1]
    [compared] = series.compared
    assert (compared.side, compared.baseline, compared.runs.pairs) == ("b", "a", 2)


def test_a_slow_side_is_found_worse(stub_process, tmp_path: Path) -> None:
    with stub_process() as quick, stub_process(first_delay_s=0.3) as slow:
        sides = [GivenSide("quick", Target(quick)), GivenSide("slow", Target(slow))]
        series = run(spec_of(), *sides, folder=tmp_path / "out")
    [compared] = series.compared
    verdicts = {c.metric: c.verdict for c in compared.runs.comparisons}
    assert verdicts["ttft_mean_s"] is Verdict.WORSE
    assert "slow over quick" in compose_series(series)


def test_each_rate_of_a_grid_has_prompts_of_its_own(stub_process, tmp_path: Path) -> None:
    with stub_process() as url:
        series = run(
            spec_of(grid__rates_rps=[10.0, 30.0]),
            GivenSide("s", Target(url)),
            folder=tmp_path / "out",
        )
    assert [m.point.rate_rps for m in series.measured] == [10.0, 30.0]
    slow, fast = (m.stored.record for m in series.measured)
    assert fast.about.workload["target_rate_rps"] == 30.0
    assert slow.about.workload["content_sha256"] != fast.about.workload["content_sha256"]
    assert mix_seed(0, 10.0) == slow.about.seed != fast.about.seed
    assert series.max_rates["s"].rps is None
    assert "offer more" in series.max_rates["s"].reason


def test_a_search_brackets_the_rate_at_which_a_server_breaks(stub_process, tmp_path: Path) -> None:
    spec = spec_of(**{"grid.search.start_rps": 8.0, "grid.search.max_rps": 16.0})
    with stub_process() as url:
        series = run(spec, GivenSide("s", Target(url)), folder=tmp_path / "out")
    assert [m.point.rate_rps for m in series.measured] == [8.0, 16.0]


def test_multiples_are_of_the_idle_server_and_the_same_for_both(
    stub_process, tmp_path: Path
) -> None:
    relative = read_live_spec(None, {**SHORT, "limits.default.ttft_x": 10.0})
    with stub_process(first_delay_s=0.05) as quick, stub_process(first_delay_s=0.2) as slow:
        sides = [GivenSide("quick", Target(quick)), GivenSide("slow", Target(slow))]
        series = run(relative, *sides, folder=tmp_path / "out")
    limits = {
        m.point.side: {o.limits.ttft_s for o in m.stored.record.run.observed}
        for m in series.measured
    }
    assert limits["quick"] == limits["slow"]
    [limit_s] = limits["quick"]
    assert limit_s is not None
    assert limit_s >= 0.5
    assert "isolated_ttft_ms" in series.measured[0].stored.origin.settings


def test_what_was_kept_is_read_again(stub_process, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    with stub_process() as url:
        series = run(spec_of(seeds=[5]), GivenSide("s", Target(url)), folder=folder)
    [stored] = read_side(folder)
    assert stored.record.about.fingerprint == series.measured[0].stored.record.about.fingerprint
    assert read_side(folder / "s-seed5") == (stored,)
    assert (folder / "report.html").stat().st_size > 1000
    with pytest.raises(ConfigError, match="already holds a measurement"), open_archive(folder):
        pass


def test_sides_of_one_folder_are_not_mixed(stub_process, tmp_path: Path) -> None:
    with stub_process() as url:
        sides = [GivenSide(name, Target(url)) for name in ("a", "b")]
        run(spec_of(), *sides, folder=tmp_path / "out")
    with pytest.raises(ConfigError, match="holds runs of a, b"):
        read_side(tmp_path / "out")
    with pytest.raises(ConfigError, match="no run in"):
        read_side(tmp_path)


def test_a_folder_that_stays_empty_is_not_left_behind(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), open_archive(tmp_path / "out"):
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_one_rate_tried_twice_has_two_folders(stub_process, tmp_path: Path) -> None:
    kept: list[Measured] = []
    with stub_process() as url:
        SeriesRunner(spec_of(), [GivenSide("s", Target(url))], NoWatch(), kept.append).run()
    with open_archive(tmp_path / "out") as opened:
        opened.keep(kept[0])
        opened.keep(kept[0])
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["s-seed0", "s-seed0-2"]


def test_a_disk_that_is_full_at_the_end_is_one_line_and_keeps_the_runs(
    stub_process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(path: Path, content: bytes) -> None:
        path.write_bytes(content[:5])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(archive, "write_bytes", fill)
    with stub_process() as url, pytest.raises(ConfigError, match="free space") as refused:
        run(spec_of(), GivenSide("s", Target(url)), folder=tmp_path / "out")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "out" / "series.json").exists()
    assert len(read_side(tmp_path / "out")) == 1
