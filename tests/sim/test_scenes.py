"""Whole scenes: each run twice, told apart by nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from bana.eval.simulator.hardware import build_hardware
from bana.eval.simulator.points import PointRunner
from bana.eval.simulator.scene import read_scene
from bana.eval.simulator.study import Study, StudyResult

SCENES = sorted(Path(__file__).parent.glob("*.toml"))


def run_scene(path: Path) -> StudyResult:
    scene = read_scene(path)
    return Study(scene, PointRunner(scene, build_hardware(scene)), lambda line: None).run()


@pytest.mark.parametrize("path", SCENES, ids=lambda path: path.stem)
def test_a_scene_runs_twice_alike(path: Path) -> None:
    first, second = run_scene(path), run_scene(path)
    assert first == second
    hashes = [m.event_hash for m in (*first.measured, *first.compared)]
    assert hashes
    scene = read_scene(path)
    for segment in {m.point.segment for m in first.compared}:
        compared = [m for m in first.compared if m.point.segment == segment]
        # The same requests for all, and no two policies alike.
        assert len({m.summary.fingerprint for m in compared}) == 1
        assert len({m.event_hash for m in compared}) == len(scene.policies)


def test_a_search_brackets_both_max_rates() -> None:
    result = run_scene(Path(__file__).parent / "search.toml")
    assert result.baseline == "fcfs-512"
    for capacities in (result.max_rates, result.p99_bounded):
        assert all(c.mean_rps is not None for c in capacities.values())
    for name, capacity in result.max_rates.items():
        bounded = result.p99_bounded[name].mean_rps
        assert bounded is not None
        assert capacity.mean_rps is not None
        assert bounded <= capacity.mean_rps
    carried = result.max_rates["fcfs-512"].mean_rps
    for measured in result.compared:
        assert measured.summary.offered_rps == pytest.approx(carried)
    base = next(m for m in result.compared if m.point.policy == "fcfs-512")
    assert base.summary.overall.attainment.value == pytest.approx(0.9, abs=0.05)
