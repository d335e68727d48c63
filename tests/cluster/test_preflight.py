"""What is refused before anything is started."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from bana.slo.errors import ConfigError
from sglang_bana.cluster import preflight
from sglang_bana.cluster.model_size import ModelSize
from sglang_bana.cluster.placement import Demand
from sglang_bana.cluster.preflight import (
    available_bytes,
    check_launch,
    check_memory,
    check_model,
    describe_model_doubt,
    estimate_memory,
    raise_open_files,
)
from sglang_bana.config_sources import ConfigRequest, load_config


def config_of(*sets: str):
    return load_config(ConfigRequest(sets=sets), {}).config


@pytest.mark.parametrize(
    ("sets", "expected"),
    [
        ((), "name a model with --model"),
        (("launch.model=m", 'launch.upstreams=["http://a"]'), "exclude each other"),
        (('launch.upstreams=["http://a"]', "launch.instances=2"), "belong to --model"),
        (('launch.upstreams=["http://a"]', "launch.decode=2"), "belong to --model"),
        (("launch.model=m", "launch.upstream_keys_file=k"), "key-file k is for attached"),
        (
            ("launch.model=m", "launch.prefill=1", "launch.decode=2", "launch.instances=4"),
            "--prefill 1 --decode 2 --both 0 are 3 instances, and --instances says 4",
        ),
        (("launch.model=m", "launch.prefill=2"), "nobody for decoding answers; add 1 to --decode"),
        (("launch.model=m", "launch.decode=2"), "nobody for computing prompts; add 1 to --prefill"),
        (("launch.model=m", "launch.prefill=1", "launch.decode=1"), "--set store.enabled=true"),
        (("launch.model=m", "launch.host=0.0.0.0"), "--host 0.0.0.0 can be reached from outside"),
        (("launch.model=m", "auth.keys_file=/no/such"), "cannot read auth.keys_file"),
        (("launch.model=m", 'launch.sglang_args=["--port","1"]'), "--port cannot be given"),
    ],
)
def test_contradictions_are_refused(sets: tuple[str, ...], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        check_launch(config_of(*sets))


def test_an_open_address_with_a_key_is_allowed() -> None:
    check_launch(config_of("launch.model=m", "launch.host=0.0.0.0", "auth.api_key=k"))
    check_launch(config_of('launch.upstreams=["http://a"]'))


def test_roles_that_add_up_are_allowed() -> None:
    split = ("launch.model=m", "launch.prefill=1", "launch.decode=2", "store.enabled=true")
    check_launch(config_of(*split))
    check_launch(config_of(*split, "launch.both=1", "launch.instances=4"))
    # With one role for all there is nothing to be handed over.
    check_launch(config_of("launch.model=m", "launch.both=2"))


def test_local_models_must_be_models(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such folder"):
        check_model(str(tmp_path / "none"))
    with pytest.raises(ConfigError, match=r"no config\.json"):
        check_model(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    assert check_model(str(tmp_path)) == str(tmp_path)
    assert check_model("org/name") == "org/name"


def test_misspelt_embedded_model_is_doubted_not_refused() -> None:
    assert "did you mean 'smollm2'" in str(describe_model_doubt("smolm2"))
    assert describe_model_doubt("smollm2") is None
    assert describe_model_doubt("org/other-model") is None


def test_more_instances_than_memory_are_refused(tmp_path: Path) -> None:
    assert available_bytes() > 0
    with pytest.raises(ConfigError, match=r"100000 instances of .* free are .* fewer --instances$"):
        check_memory(str(tmp_path), ModelSize(0, 0), Demand(100_000, 1))


def test_every_rank_takes_memory(tmp_path: Path, monkeypatch) -> None:
    one, two = (estimate_memory(Demand(1, ranks)) for ranks in (1, 2))
    assert one < two < 2 * one
    assert estimate_memory(Demand(3, 2)) == 3 * two
    monkeypatch.setattr(preflight, "available_bytes", lambda: one)
    check_memory(str(tmp_path), ModelSize(0, 0), Demand(1, 1))
    with pytest.raises(ConfigError, match=r"1 instances of 2 ranks of .* lower SGLang's --tp-size"):
        check_memory(str(tmp_path), ModelSize(0, 0), Demand(1, 2))


def test_memory_that_only_caches_files_is_free(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(preflight, "CGROUP", tmp_path)
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("900\n")
    assert available_bytes() == 100
    (tmp_path / "memory.stat").write_text("anon 100\nactive_file 300\ninactive_file 400\n")
    assert available_bytes() == 800


def test_open_files_are_raised_as_far_as_allowed() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, before[1]))
        assert raise_open_files(400) is None
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 2 * 400 + 256
        if before[1] != resource.RLIM_INFINITY:
            assert "lower limits.max_requests" in str(raise_open_files(before[1]))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
