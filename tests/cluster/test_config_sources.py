"""Where settings come from, what is refused, and how the refusal reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bana.slo.errors import ConfigError
from sglang_bana.config import BanaConfig
from sglang_bana.config_keys import MASK, SETTINGS
from sglang_bana.config_sources import (
    RESERVED_ENV,
    ConfigRequest,
    FlagValue,
    LoadedConfig,
    Source,
    load_config,
)


def load(toml: str = "", *sets: str, env: dict[str, str] | None = None, **flags: object):
    named = {k.replace("__", "."): FlagValue("--" + k, v) for k, v in flags.items()}
    return load_config(ConfigRequest(toml or None, named, sets), env or {})


def refusal(toml: str = "", *sets: str, env: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load(toml, *sets, env=env)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def write(tmp_path: Path):
    def write_file(text: str) -> str:
        path = tmp_path / "bana.toml"
        path.write_text(text)
        return str(path)

    return write_file


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    monkeypatch.chdir(folder)


def test_nothing_said_is_the_default() -> None:
    loaded = load()
    assert loaded.config == BanaConfig()
    assert {origin.source for origin in loaded.origins.values()} == {Source.DEFAULT}
    assert loaded.changed() == {}


def test_flag_beats_environment_beats_file_beats_default(write) -> None:
    toml = write("[launch]\nport = 1\ninstances = 2\nhost = 'file'\n[limits]\nmax_requests = 5\n")
    env = {"BANA_LAUNCH_PORT": "11", "BANA_LAUNCH_INSTANCES": "3"}
    loaded = load(toml, env=env, launch__port=21)
    assert (loaded.config.launch.port, loaded.config.launch.instances) == (21, 3)
    assert (loaded.config.launch.host, loaded.config.limits.max_requests) == ("file", 5)
    assert str(loaded.origins["launch.port"]) == "flag --launch__port"
    assert str(loaded.origins["launch.instances"]) == "environment BANA_LAUNCH_INSTANCES"
    assert str(loaded.origins["launch.host"]) == f"file {toml}"
    assert str(loaded.origins["limits.stall_timeout_s"]) == "default"


def test_every_setting_can_come_from_each_source(write) -> None:
    changed = {
        "launch.model": "m",
        "launch.upstreams": ["http://a"],
        "launch.sglang_args": ["--tp-size", "2"],
        "engine.scheduler": "stock",
        "engine.force_cpu": True,
        "routing.options": {"decode_request_tokens": 5.0},
        "slo.classes": {"gold": {"rank": 9, "ttft_ms": 1.5, "tpot_ms": 2.0}},
        "slo.allowed.min_ttft_ms": 3.0,
        "supervisor.max_restarts": 0,
    }
    for name, value in changed.items():
        section, _, key = name.rpartition(".")
        text = value if isinstance(value, str) else json.dumps(value)
        by_env = load(env={SETTINGS[name].env_name: text})
        by_set = load("", f"{name}={text}")
        toml_value = json.dumps(value)
        if isinstance(value, dict):
            toml_value = _as_inline_table(value)
        by_file = load(write(f"[{section}]\n{key} = {toml_value}\n"))
        assert by_env.values == by_set.values == by_file.values
        assert by_env.config != BanaConfig()


def _as_inline_table(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k} = {_as_inline_table(v)}" for k, v in value.items()) + "}"
    return json.dumps(value)


def test_mappings_are_merged_by_entry(write) -> None:
    toml = write("[slo.classes.gold]\nrank = 9\nttft_ms = 1\ntpot_ms = 1\n")
    loaded = load(toml, "slo.classes.batch.ttft_ms=5")
    classes = loaded.config.slo.classes
    assert set(classes) == {"interactive", "standard", "batch", "gold"}
    assert (classes["batch"].ttft_ms, classes["batch"].tpot_ms) == (5, 2000)


def test_default_file_is_read_where_it_is(write, tmp_path, monkeypatch) -> None:
    write("[launch]\nport = 7\n")
    monkeypatch.chdir(tmp_path)
    assert load().config.launch.port == 7


def test_file_can_be_named_by_the_environment(write) -> None:
    assert load(env={"BANA_CONFIG": write("[launch]\nport = 7\n")}).config.launch.port == 7


@pytest.mark.parametrize("name", sorted(RESERVED_ENV - {"BANA_CONFIG"}))
def test_reserved_variables_are_no_settings(name: str) -> None:
    assert load(env={name: "x"}).config == BanaConfig()


@pytest.mark.parametrize(
    ("toml", "expected"),
    [
        ("[launch]\nprot = 1\n", "did you mean 'port'?"),
        ("[lanch]\nport = 1\n", "did you mean 'launch'?"),
        ("[slo.alowed]\nmin_ttft_ms = 1\n", "did you mean 'allowed'?"),
        ("[slo.classes.a]\nrank = 1\nttft_ms = 1\ntpot_mss = 1\n", "did you mean 'tpot_ms'?"),
        ("[launch]\nport = 70000\n", "launch.port=70000 from {path}: Expected int <= 65535"),
        ("[launch]\nport = '80'\n", "expected a number, remove the quotes"),
        ("[launch]\nupstreams = 'http://a'\n", "expected a table or array, not text; write"),
        ("launch = 3\n", "launch=3 is no table"),
        ("[launch\n", "no valid TOML: Expected ']' at the end of a table declaration (at line 1"),
        ("[limits]\nstall_timeout_s = nan\n", "limits.stall_timeout_s=nan"),
        ("[slo]\ndefault_class = 'standart'\n", "did you mean 'standard'?"),
        ("[slo.allowed]\nmin_ttft_ms = 9e5\n", "exceeds max_ttft_ms"),
        ("[routing]\npolicy = 'least_lod'\n", "did you mean 'least_load'?"),
        ("[routing.options]\ndecode = 1\n", "unknown option of routing policy 'least_load'"),
        ("[engine]\nscheduler = 'bna'\n", "did you mean 'bana'?"),
        ("[supervisor]\nkill_after_s = 2\n", "must be below"),
        ("[routing]\nseed = 99999999999999999999\n", "number of at most 64 bits"),
        ("[slo.classes.'a b']\nrank = 1\nttft_ms = 1\ntpot_ms = 1\n", "matching regex"),
        ('[slo.classes."a\\n"]\nrank = 1\nttft_ms = 1\ntpot_ms = 1\n', "matching regex"),
    ],
)
def test_bad_file_is_one_line_that_helps(write, toml: str, expected: str) -> None:
    path = write(toml)
    assert expected.format(path=path) in refusal(path)


@pytest.mark.parametrize(
    ("variable", "text", "expected"),
    [
        ("BANA_ROUTING_POLCY", "x", "did you mean 'policy'?"),
        ("BANA_LUNCH_PORT", "1", "unknown environment variable BANA_LUNCH_PORT"),
        ("BANA_LAUNCH_PORT", "x", "launch.port='x' from BANA_LAUNCH_PORT: Expected int"),
        ("BANA_LAUNCH_INSTANCES", "0", "Expected int >= 1"),
        ("BANA_ROUTING_OPTIONS", "{", "must be JSON"),
        ("BANA_LAUNCH_UPSTREAMS", "http://a", "must be JSON"),
        ("BANA_SLO_ALLOWED_MAX_TTFT_MS", "inf", "<= 86400000"),
        ("BANA_SUPERVISOR_KILL_AFTER_S", "nan", "Expected float > 0"),
        ("BANA_ENGINE_FORCE_CPU", "maybe", "Expected bool"),
        ("BANA_AUTH_API_KEY", "", "auth.api_key from BANA_AUTH_API_KEY is empty"),
        ("BANA_AUTH_ADMIN_API_KEY", "", "auth.admin_api_key from BANA_AUTH_ADMIN_API_KEY is empty"),
        ("BANA_AUTH_KEYS_FILE", "", "auth.keys_file from BANA_AUTH_KEYS_FILE is empty"),
        ("BANA_LAUNCH_UPSTREAM_KEYS_FILE", "", "is empty; give a value or leave it out"),
    ],
)
def test_bad_variable_is_one_line_that_helps(variable: str, text: str, expected: str) -> None:
    assert expected in refusal(env={variable: text})


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("launch.port", "has no '='"),
        ("launch.prot=1", "did you mean 'port'?"),
        ("port=1", "unknown section 'port'"),
        ("slo.classes.batch.rank.x=1", "holds no further keys; end the name there"),
        ("launch.port.x=1", "unknown"),
        ("auth.api_key=", "auth.api_key from --set auth.api_key is empty"),
        ("auth.keys_file=", "is empty; give a value or leave it out"),
    ],
)
def test_bad_set_is_one_line_that_helps(entry: str, expected: str) -> None:
    assert expected in refusal("", entry)


def test_unreadable_file_is_named(tmp_path: Path) -> None:
    assert "cannot read configuration" in refusal(str(tmp_path / "none.toml"))
    assert "cannot read configuration" in refusal(str(tmp_path))
    assert "no home directory" in refusal("~no-such-user/bana.toml")


def test_empty_words_are_not_taken_for_nothing_said() -> None:
    with pytest.raises(ConfigError, match="--auth__api_key is empty"):
        load(auth__api_key="")
    with pytest.raises(ConfigError, match="--config is empty"):
        load_config(ConfigRequest(file=""), {})


def test_flag_and_set_of_one_setting_are_refused() -> None:
    with pytest.raises(ConfigError, match="keep one"):
        load("", "launch.port=1", launch__port=2)


def test_secrets_are_masked_wherever_values_are_shown() -> None:
    loaded: LoadedConfig = load(env={"BANA_AUTH_API_KEY": "top-secret"})
    assert loaded.config.auth.api_key == "top-secret"
    assert loaded.shown()["auth.api_key"] == MASK
    assert loaded.shown()["auth.admin_api_key"] == ""
    assert "top-secret" not in repr(loaded.changed())


def test_what_others_of_this_project_set_is_no_setting() -> None:
    others = ("BANA_CI_CACHE", "BANA_API_KEY", "BANA_ADMIN_API_KEY", "BANA_LMCACHE_PYTHON")
    assert load(env=dict.fromkeys(others, "set")).config == BanaConfig()


def test_an_empty_word_of_the_environment_opens_no_lock(write) -> None:
    toml = write("[auth]\napi_key = 'from-the-file'\n")
    assert "BANA_AUTH_API_KEY is empty" in refusal(toml, env={"BANA_AUTH_API_KEY": ""})
    # Settings that lock nothing may be emptied.
    assert load(env={"BANA_LAUNCH_RUN_DIR": ""}).config.launch.run_dir == ""


def test_lists_are_replaced_and_mappings_are_merged(write) -> None:
    toml = write(
        "[launch]\nupstreams = ['http://a', 'http://b']\n"
        "[slo.classes.gold]\nrank = 9\nttft_ms = 1\ntpot_ms = 1\n"
    )
    env = {
        "BANA_LAUNCH_UPSTREAMS": '["http://c"]',
        "BANA_SLO_CLASSES": '{"tin": {"rank": 0, "ttft_ms": 1, "tpot_ms": 1}}',
    }
    loaded = load(toml, env=env).config
    assert loaded.launch.upstreams == ("http://c",)
    assert {"gold", "tin", "batch"} <= set(loaded.slo.classes)


def test_tiers_of_the_store_are_an_array_of_tables(tmp_path: Path) -> None:
    file = tmp_path / "bana.toml"
    file.write_text('[[store.tiers]]\npath = "/a"\n[[store.tiers]]\nkind = "memory"\n')
    store = load_config(ConfigRequest(file=str(file)), {}).config.store
    assert [(tier.kind, tier.path) for tier in store.tiers] == [("directory", "/a"), ("memory", "")]
    assert not store.enabled
    file.write_text('[[store.tiers]]\npaht = "/a"\n')
    with pytest.raises(ConfigError, match="did you mean 'path'"):
        load_config(ConfigRequest(file=str(file)), {})


@pytest.mark.parametrize(
    "entry",
    [
        "store.tiers=[{}]",
        "store.placement=al",
        "store.leased_share=1.5",
        'store.tiers=[{"path": "/x", "width": 0}]',
        'store.tiers={"path": "/x"}',
        "store.salt=",
    ],
)
def test_a_store_that_cannot_be_is_refused(entry: str) -> None:
    with pytest.raises(ConfigError):
        load_config(ConfigRequest(sets=(entry,)), {})
