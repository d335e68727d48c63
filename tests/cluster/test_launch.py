"""The plan of a launch and its exact commands; nothing is started."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import msgspec
import pytest

from bana.slo.errors import ConfigError
from sglang_bana.cluster.commands import (
    build_instance_spec,
    build_store_spec,
    build_upstreams,
    inherit_environment,
    list_commands,
)
from sglang_bana.cluster.launch import ModelChoice, plan_launch
from sglang_bana.config_sources import ConfigRequest, load_config

MODEL = ModelChoice("/models/x")


@pytest.fixture(autouse=True)
def _no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sglang_bana.cluster.placement.count_gpus", lambda: 0)


def plan(tmp_path: Path, *sets: str, model: ModelChoice = MODEL):
    entries = ("launch.model=x", "launch.port=0", f"launch.run_dir={tmp_path / 'run'}", *sets)
    config = load_config(ConfigRequest(sets=entries), {}).config
    return plan_launch(config, model, os.environ)


def value_of(argv: tuple[str, ...], option: str) -> str:
    return argv[argv.index(option) + 1]


def test_every_instance_has_its_own_ports_orders_and_cores(tmp_path: Path) -> None:
    with plan(tmp_path, "launch.instances=2") as launch:
        first, second, door = list_commands(launch.blueprint, launch.run_dir)
    ports = {value_of(c.argv, o) for c in (first, second) for o in ("--port", "--nccl-port")}
    assert len(ports) == 4
    assert first.env["BANA_INSTANCE"] != second.env["BANA_INSTANCE"]
    cores = len(os.sched_getaffinity(0))
    assert (set(first.cores).isdisjoint(second.cores)) is (cores > 1)
    for command in (first, second):
        assert value_of(command.argv, "--model-path") == "/models/x"
        assert value_of(command.argv, "--host") == "127.0.0.1"
        assert value_of(command.argv, "--served-model-name") == "x"
        assert "--sleep-on-idle" in command.argv
        assert command.env["OMP_WAIT_POLICY"] == "PASSIVE"
        assert command.pass_fds == ()
    assert door.pass_fds == (launch.blueprint.listen_fd,)
    assert not (tmp_path / "run").exists()


def test_roles_of_the_launch_are_told_to_the_front_door(tmp_path: Path) -> None:
    sets = ("launch.prefill=1", "launch.decode=2", "launch.both=1", "store.enabled=true")
    with plan(tmp_path, *sets) as launch:
        upstreams = build_upstreams(launch.blueprint, launch.run_dir, "s")
    assert [(u.name, u.role) for u in upstreams] == [
        ("instance-0", "prefill"),
        ("instance-1", "decode"),
        ("instance-2", "decode"),
        ("instance-3", "both"),
    ]
    with plan(tmp_path, "launch.instances=2") as launch:
        upstreams = build_upstreams(launch.blueprint, launch.run_dir, "s")
    assert [u.role for u in upstreams] == ["both", "both"]


def test_sglang_arguments_come_last_and_replace_ours(tmp_path: Path) -> None:
    given = '["--max-total-tokens","77","--sleep-on-idle","--dtype","float32"]'
    with plan(tmp_path, f"launch.sglang_args={given}") as launch:
        argv = list_commands(launch.blueprint, launch.run_dir)[0].argv
    assert argv[-5:] == ("--max-total-tokens", "77", "--sleep-on-idle", "--dtype", "float32")
    assert argv.count("--max-total-tokens") == argv.count("--sleep-on-idle") == 1
    assert "--mem-fraction-static" in argv


def test_instances_on_cores_share_the_memory(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    sets = ("launch.instances=2", 'launch.sglang_args=["--tp-size","2"]')
    with plan(tmp_path, *sets) as launch:
        command = list_commands(launch.blueprint, launch.run_dir)[0]
    assert float(value_of(command.argv, "--mem-fraction-static")) == 0.2
    assert command.env["SGLANG_CPU_OMP_THREADS_BIND"].count("|") == 1


def test_gpus_are_named_in_the_environment_and_cores_left_alone(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("sglang_bana.cluster.placement.count_gpus", lambda: 4)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    sets = ("launch.instances=2", 'launch.sglang_args=["--tp-size","2"]')
    with plan(tmp_path, *sets) as launch:
        commands = list_commands(launch.blueprint, launch.run_dir)[:2]
        spec = build_instance_spec(launch.blueprint, launch.blueprint.sites[0], launch.run_dir, "s")
    assert [c.env["CUDA_VISIBLE_DEVICES"] for c in commands] == ["0,1", "2,3"]
    assert all("--max-total-tokens" not in c.argv and c.cores == () for c in commands)
    assert not spec.engine.force_cpu
    with plan(tmp_path, "engine.force_cpu=true") as launch:
        command = list_commands(launch.blueprint, launch.run_dir)[0]
        assert command.env["CUDA_VISIBLE_DEVICES"] == ""
        assert command.cores != ()


def test_the_url_needs_no_name_to_be_resolved(tmp_path: Path) -> None:
    with plan(tmp_path, "launch.host=localhost") as launch:
        host = launch.url.removeprefix("http://").rpartition(":")[0]
    assert host in ("127.0.0.1", "[::1]")


def test_local_models_never_look_at_the_network(tmp_path: Path) -> None:
    with plan(tmp_path, model=ModelChoice(str(tmp_path))) as launch:
        assert list_commands(launch.blueprint, launch.run_dir)[0].env["HF_HUB_OFFLINE"] == "1"
    with plan(tmp_path, model=ModelChoice("org/name")) as launch:
        assert "HF_HUB_OFFLINE" not in list_commands(launch.blueprint, launch.run_dir)[0].env


def test_front_door_and_instance_agree(tmp_path: Path) -> None:
    with plan(tmp_path) as launch:
        site = launch.blueprint.sites[0]
        spec = build_instance_spec(launch.blueprint, site, launch.run_dir, "the-secret")
        (upstream,) = build_upstreams(launch.blueprint, launch.run_dir, "the-secret")
        lines = [c.format_line() for c in list_commands(launch.blueprint, launch.run_dir)]
    assert (upstream.name, upstream.load_endpoint) == (spec.name, spec.load_endpoint)
    assert upstream.secret == spec.secret == "the-secret"
    assert upstream.url.endswith(f":{site.port}")
    assert upstream.local
    assert spec.parent_pid == os.getpid()
    assert spec.engine.force_cpu
    assert not any("the-secret" in line for line in lines)


def test_attached_servers_need_no_instance(tmp_path: Path) -> None:
    config = load_config(
        ConfigRequest(sets=("launch.port=0", 'launch.upstreams=["http://127.0.0.1:9"]')), {}
    ).config
    with plan_launch(config, ModelChoice(""), os.environ) as launch:
        commands = list_commands(launch.blueprint, launch.run_dir)
        upstreams = build_upstreams(launch.blueprint, launch.run_dir, "s")
    assert [command.name for command in commands] == ["front-door"]
    assert [(u.url, u.local, u.secret) for u in upstreams] == [("http://127.0.0.1:9", False, "")]


def test_port_in_use_is_refused_and_everything_released(tmp_path: Path) -> None:
    with plan(tmp_path) as launch:
        port = int(launch.url.rpartition(":")[2])
        held = launch.blueprint.sites[0].port
        with pytest.raises(ConfigError, match="port in use"), plan(tmp_path, f"launch.port={port}"):
            pass
    for number in (port, held):
        with socket.socket() as again:
            again.bind(("127.0.0.1", number))


def test_children_inherit_the_environment_without_settings() -> None:
    environ = {"PATH": "p", "BANA_AUTH_API_KEY": "k", "BANA_CACHE": "c", "BANA_LAUNCH_PORT": "1"}
    assert inherit_environment(environ) == {"PATH": "p", "BANA_CACHE": "c"}


def test_an_instance_reaches_itself_where_a_proxy_is_set(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    monkeypatch.setenv("no_proxy", "internal.example")
    with plan(tmp_path) as launch:
        env = list_commands(launch.blueprint, launch.run_dir)[0].env
    assert env["no_proxy"] == env["NO_PROXY"] == "internal.example,127.0.0.1"


def test_a_command_is_printed_as_a_shell_would_take_it(tmp_path: Path) -> None:
    with plan(tmp_path, 'launch.sglang_args=["--chat-template","a b"]') as launch:
        command = list_commands(launch.blueprint, launch.run_dir)[0]
    assert command.format_line().endswith("--chat-template 'a b'")
    assert msgspec.json.decode(msgspec.json.encode(command))["argv"] == list(command.argv)


def test_more_ranks_than_cores_are_refused_before_anything_starts(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    sets = ('launch.sglang_args=["--tp-size","64"]',)
    with pytest.raises(ConfigError, match="64 ranks needs as many cores"), plan(tmp_path, *sets):
        pass


def test_a_store_is_one_more_process_that_all_instances_know(tmp_path: Path) -> None:
    sets = ("launch.instances=2", "store.enabled=true", "store.salt=s3cret")
    with plan(tmp_path, *sets) as launch:
        blueprint, run_dir = launch.blueprint, launch.run_dir
        commands = list_commands(blueprint, run_dir)
        spec = build_store_spec(blueprint, run_dir, "key")
        told = [build_instance_spec(blueprint, site, run_dir, "key") for site in blueprint.sites]
    assert [c.name for c in commands] == ["store", "instance-0", "instance-1", "front-door"]
    # The size is settled once: a store that is restarted is as large as before.
    assert spec.store.arena_bytes > 0
    assert {(t.store_endpoint, t.store_salt) for t in told} == {(spec.endpoint, "s3cret")}
    assert "s3cret" not in "".join(command.format_line() for command in commands)


def test_without_a_store_nobody_hears_of_one(tmp_path: Path) -> None:
    with plan(tmp_path) as launch:
        commands = list_commands(launch.blueprint, launch.run_dir)
        site = launch.blueprint.sites[0]
        told = build_instance_spec(launch.blueprint, site, launch.run_dir, "key")
    assert [c.name for c in commands] == ["instance-0", "front-door"]
    assert (told.store_endpoint, told.store_salt) == ("", "")


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        ((f"store.arena_bytes={2**44}",), r"store\.arena_bytes"),
        (('store.tiers=[{"path": "/proc/x"}]',), "/proc"),
    ],
)
def test_a_store_that_does_not_fit_is_refused(
    tmp_path: Path, sets: tuple[str, ...], words: str
) -> None:
    with (
        pytest.raises(ConfigError, match=words),
        plan(tmp_path, "store.enabled=true", *sets),
    ):
        pass


def test_a_store_needs_instances_of_its_own(tmp_path: Path) -> None:
    entries = ('launch.upstreams=["http://127.0.0.1:1"]', "launch.port=0", "store.enabled=true")
    config = load_config(ConfigRequest(sets=entries), {}).config
    with (
        pytest.raises(ConfigError, match="--upstream"),
        plan_launch(config, ModelChoice(""), os.environ),
    ):
        pass
