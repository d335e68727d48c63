"""What a scene may say, and how it is told that it may not."""

from __future__ import annotations

from pathlib import Path

import pytest

from bana.eval.simulator.hardware import build_hardware
from bana.eval.simulator.points import Point, PointRunner, choose_single
from bana.eval.simulator.scene import read_scene
from bana.eval.simulator.spec import Segment, list_segments
from bana.slo.errors import ConfigError
from bana.slo.steps import StepModel, StepShape

SCENE = Path(__file__).parents[2] / "sim" / "steady.toml"


def refuse(*sets: str, policies: tuple[str, ...] = ()) -> str:
    with pytest.raises(ConfigError) as caught:
        read_scene(SCENE, sets, policies)
    return str(caught.value)


@pytest.mark.parametrize(
    ("sets", "parts"),
    [
        (["engine.chunk"], ["has no '='"]),
        (["engine.chunk_tokns=5"], ["engine.chunk_tokns", "did you mean 'engine.chunk_tokens'"]),
        (["engine.chunk_tokens=8", "engine.page_tokens=16"], ["chunk_tokens=8", "page of 16"]),
        (["policies.fcfs.engine.kv_tokens=0"], ["policies.fcfs.engine", "kv_tokens=0"]),
        (["policies.fcfs.engine.overtaking=now"], ["between_chunks, never"]),
        (["offsets_s=[1, 2]"], ["offsets_s", "only a trace"]),
        (["grid.rates_rps=[1]", "grid.search.start_rps=1"], ["exclude each other"]),
        (["workload.arrivals.kind=gamma"], ["arrivals.cv"]),
        (["service.kind=guess"], ["coefficients, fitted, tables"]),
        (["belief.bias=0"], ["belief.bias=0"]),
        (["policies.fcfs.order.name=1"], ["policies.fcfs.order.name=1"]),
    ],
)
def test_what_cannot_be_is_one_line(sets: list[str], parts: list[str]) -> None:
    said = refuse(*sets)
    assert "\n" not in said
    for part in parts:
        assert part in said


def test_policies_are_chosen_by_name() -> None:
    assert list(read_scene(SCENE, (), ["budget"]).policies) == ["budget"]
    assert list(read_scene(SCENE).policies) == ["fcfs", "budget"]
    said = refuse(policies=("budgt",))
    assert "did you mean 'budget'" in said


def test_segments_are_every_seed_with_every_offset() -> None:
    trace = ["workload.trace.path=any.csv", "workload.arrivals.kind=trace"]
    drop = ["workload.prompts={}", "workload.arrivals={kind='trace'}", "offsets_s=[0, 50]"]
    scene = read_scene(SCENE, ["seeds=[3, 4]", *trace, *drop])
    segments = [Segment(3, 0), Segment(3, 50), Segment(4, 0), Segment(4, 50)]
    assert list_segments(scene) == segments
    assert [segment.label for segment in segments][:2] == ["seed3+0s", "seed3+50s"]


def test_a_single_run_is_one_policy_at_one_rate() -> None:
    scene = read_scene(SCENE, ["grid.rates_rps=[4.0]"], ["budget"])
    assert choose_single(scene) == Point("budget", Segment(0), 4.0)
    with pytest.raises(ConfigError, match="2 policies, 1 segments, 1 rates"):
        choose_single(read_scene(SCENE))


def test_coefficients_come_from_a_file_too(tmp_path: Path) -> None:
    file = tmp_path / "steps.json"
    model = StepModel(0.01, 0.001, 0.0, 0.02, 0.003, 0.0)
    file.write_text(
        '{"prefill_base_s": 0.01, "prefill_token_s": 0.001, "attended_token_s": 0, '
        '"decode_base_s": 0.02, "decode_request_s": 0.003, "context_token_s": 0}'
    )
    named = ["service={kind='coefficients', file='" + str(file) + "'}"]
    hardware = build_hardware(read_scene(SCENE, named))
    assert hardware.model == model
    slow = build_hardware(read_scene(SCENE, [*named, "overhead_ms=5"]))
    for shape in (StepShape(100, 0.0), StepShape(decode_requests=2)):
        expected_s = model.estimate_step_s(shape) + 0.005
        assert slow.times.estimate_step_s(shape) == pytest.approx(expected_s)
        assert slow.model.estimate_step_s(shape) == pytest.approx(expected_s)


@pytest.mark.parametrize(
    ("service", "part"),
    [
        ("{kind='coefficients'}", "give either"),
        ("{kind='coefficients', file='none.json'}", "cannot read 'none.json'"),
        ("{kind='coefficients', file='FILE'}", "expected a JSON object of prefill_base_s"),
        ("{kind='tables', model='no/such'}", "no SGLang tables for model 'no/such'"),
    ],
)
def test_step_times_that_are_not_there_are_one_line(
    tmp_path: Path, service: str, part: str
) -> None:
    if "tables" in service:
        pytest.importorskip("aiconfigurator_core", reason="the extra `sim` is not installed")
    file = tmp_path / "wrong.json"
    file.write_text("{}")
    scene = read_scene(SCENE, ["service=" + service.replace("FILE", str(file))])
    with pytest.raises(ConfigError) as caught:
        build_hardware(scene)
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_restore_policy_needs_a_store() -> None:
    said = refuse("policies.budget.restore.name=planned")
    assert "policies.budget.restore" in said
    assert "add a [store]" in said
    store = ["store.token_bytes=100", "store.tiers.disk.bytes_per_s=1e6"]
    scene = read_scene(SCENE, [*store, "policies.budget.restore.name=planned"])
    assert scene.policies["fcfs"].restore is None
    assert "store.tiers.disk.speed" in refuse(*store, "store.tiers.disk.speed=2")


def test_a_store_that_nobody_restores_from_changes_nothing() -> None:
    store = ["store.token_bytes=100", "store.tiers.disk.bytes_per_s=1e6"]
    alone, beside = read_scene(SCENE, (), ["fcfs"]), read_scene(SCENE, store, ["fcfs"])
    point = choose_single(alone)
    runs = [PointRunner(s, build_hardware(s)).measure(point) for s in (alone, beside)]
    assert runs[0].event_hash == runs[1].event_hash
    assert runs[1].sources == {}
