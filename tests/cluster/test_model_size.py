"""How large a model is once it is served."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bana.slo.errors import ConfigError
from sglang_bana.cluster import preflight
from sglang_bana.cluster.launch import ModelChoice
from sglang_bana.cluster.model_size import ModelSize, measure_model, measure_weights
from sglang_bana.cluster.placement import Demand
from sglang_bana.cluster.preflight import check_memory, describe_pool_doubt, estimate_memory

from .test_launch import plan

SHAPE = {
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 40,
}
GIB = 2**30


@pytest.fixture(autouse=True)
def _no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sglang_bana.cluster.placement.count_gpus", lambda: 0)


def write_model(folder: Path, **config: Any) -> str:
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "a.safetensors").write_bytes(b"x" * 100)
    return str(folder)


def test_weights_are_counted_and_other_files_are_not(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_bytes(b"x" * 99)
    assert measure_weights(write_model(tmp_path)) == 100
    assert measure_weights("org/name") == 0


@pytest.mark.parametrize(
    ("stored", "served", "expected"),
    [
        ("bfloat16", "float32", ModelSize(200, 2 * 3 * 2 * 10 * 4)),
        ("bfloat16", "auto", ModelSize(100, 240)),
        ("float16", "bfloat16", ModelSize(100, 240)),
        ("float32", "float32", ModelSize(100, 480)),
        ("float32", "auto", ModelSize(50, 240)),
        ("float32", "half", ModelSize(50, 240)),
        ("int3", "float32", ModelSize(100, 480)),
    ],
)
def test_what_is_served_wider_than_it_is_stored_is_larger(
    tmp_path: Path, stored: str, served: str, expected: ModelSize
) -> None:
    for name in ("dtype", "torch_dtype"):
        model = write_model(tmp_path, **SHAPE, **{name: stored})
        assert measure_model(model, served, ()) == expected


def test_quantised_weights_stay_as_they_are(tmp_path: Path) -> None:
    model = write_model(tmp_path, **SHAPE, dtype="bfloat16", quantization_config={"bits": 4})
    assert measure_model(model, "float32", ()).weight_bytes == 100


def test_a_cache_of_another_type_has_its_size(tmp_path: Path) -> None:
    model = write_model(tmp_path, **SHAPE, dtype="bfloat16", head_dim=16)
    for args in (("--kv-cache-dtype", "fp8_e5m2"), ("--kv-cache-dtype=fp8_e4m3",)):
        assert measure_model(model, "float32", args).kv_bytes_per_token == 2 * 3 * 2 * 16
    assert measure_model(model, "auto", ("--kv-cache-dtype", "auto")).kv_bytes_per_token == 384


@pytest.mark.parametrize("text", ["", "[]", '{"num_hidden_layers": "three"}', "\xff"])
def test_what_says_nothing_is_taken_as_it_is(tmp_path: Path, text: str) -> None:
    model = write_model(tmp_path)
    (tmp_path / "config.json").write_text(text, encoding="latin-1")
    assert measure_model(model, "float32", ()) == ModelSize(100, 0)
    assert measure_model("org/name", "float32", ()) == ModelSize(0, 0)


def test_widened_weights_are_refused_where_the_stored_ones_would_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write_model(tmp_path, **SHAPE, dtype="bfloat16")
    free = estimate_memory(Demand(1, 1)) + 150
    monkeypatch.setattr(preflight, "available_bytes", lambda: free)
    check_memory(model, measure_model(model, "auto", ()), Demand(1, 1))
    with pytest.raises(ConfigError, match=r"--dtype makes the weights 2 times as large"):
        check_memory(model, measure_model(model, "float32", ()), Demand(1, 1))


def test_pools_that_do_not_fit_are_a_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    demand = Demand(2, 1)
    free = estimate_memory(demand) + 3 * GIB
    monkeypatch.setattr(preflight, "available_bytes", lambda: free)
    size = ModelSize(GIB // 2, 2**20)
    assert describe_pool_doubt(size, demand, 1024) is None
    doubt = describe_pool_doubt(size, demand, 1025)
    assert "KV pools of 1025 tokens take 2.0 GiB" in str(doubt)
    monkeypatch.setattr(preflight, "available_bytes", lambda: 0)
    assert describe_pool_doubt(ModelSize(0, 0), demand, 1025) is None


@pytest.mark.parametrize("is_slow", [True, False])
def test_a_launch_measures_what_its_cores_will_serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_slow: bool
) -> None:
    monkeypatch.setattr("sglang_bana.cluster.launch.is_half_slow", lambda: is_slow)
    model = ModelChoice(write_model(tmp_path, **SHAPE, dtype="bfloat16"))
    free = estimate_memory(Demand(1, 1)) + 150 + 65_536 * 480
    monkeypatch.setattr(preflight, "available_bytes", lambda: free)
    with plan(tmp_path, model=model) as launch:
        pools = [line for line in launch.warnings if "KV pools" in line]
    assert len(pools) == is_slow
    given = 'launch.sglang_args=["--max-total-tokens","9","--dtype","float32"]'
    with plan(tmp_path, given, model=model) as launch:
        assert not [line for line in launch.warnings if "KV pools" in line]
    monkeypatch.setattr(preflight, "available_bytes", lambda: estimate_memory(Demand(1, 1)) + 150)
    with pytest.raises(ConfigError, match="2 times as large"), plan(tmp_path, given, model=model):
        pass
