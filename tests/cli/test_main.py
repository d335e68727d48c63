"""The command line as a user meets it: exit statuses, single lines, plain output, JSON."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_bana.cluster.doctor import examine_device
from sglang_bana.config import BanaConfig, LaunchConfig

TIMEOUT_S = 180.0


def bana(*argv: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("BANA_")}
    clean |= {"XDG_RUNTIME_DIR": str(cwd), "BANA_CACHE": str(cwd / "cache"), **env}
    return subprocess.run(
        [sys.executable, "-m", "bana.cli.main", *argv],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        cwd=cwd,
        env=clean,
    )


@pytest.fixture
def here(tmp_path: Path) -> Path:
    return tmp_path


@pytest.mark.parametrize("argv", [["--help"], ["launch", "--help"], ["status", "--help"]])
def test_help_imports_nothing_heavy(here: Path, argv: list[str]) -> None:
    program = (
        "import sys; from bana.cli.main import app, run_command;"
        f"run_command(app, {argv!r});"
        "print('loaded', *sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=TIMEOUT_S, cwd=here
    )
    assert "Usage:" in done.stdout
    loaded = set(done.stdout.splitlines()[-1].split())
    heavy = {"torch", "sglang", "aiohttp", "transformers", "numpy", "zmq", "psutil", "pynvml"}
    assert loaded & heavy == set()
    assert "typer" in loaded


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["launch", "--nonsense"], "No such option"),
        (["launch", "--port", "x"], "Invalid value for '--port'"),
        (["nonsense"], "No such command 'nonsense'"),
        (["launch"], "name a model with --model"),
        (["launch", "--model", "/no/such/model"], "unknown model '/no/such/model'"),
        (["launch", "--model", "smollm2", "stray"], "unexpected argument 'stray'"),
        (["launch", "--model", "m", "--", "--api-key", "x"], "use bana's own --api-key"),
        (
            ["launch", "--model", "x" * 256, "--host", "a..b", "--api-key", "k", "--dry-run"],
            "cannot resolve --host 'a..b'",
        ),
        (["launch", "--model", "~no-such-user/x"], "no home directory"),
        (["launch", "--model", "m", "--run-dir", "~no-such-user/x", "--dry-run"], "no home"),
        (["launch", "--model", "m", "--keys-file", "."], "cannot read auth.keys_file '.'"),
        (["launch", "--model", "m", "--api-key", ""], "--api-key is empty"),
        (["launch", "--model", "m", "--json"], "give it with --dry-run"),
        (["launch", "--upstream", "http://a b"], "no server's URL"),
        (["stop", "--run-dir", ""], "no run in ''"),
        (["stop", "--timeout", "inf"], "Invalid value for '--timeout'"),
        (["stop", "--timeout", "nan"], "Invalid value for '--timeout'"),
        (["launch", "--model", "m", "--port", "70000"], "launch.port=70000 from --port"),
        (["launch", "--model", "m", "--instances", "0"], "launch.instances=0"),
        (["launch", "--model", "m", "--config", "none.toml"], "cannot read configuration"),
        (["launch", "--model", "m", "--set", "launch.prt=1"], "did you mean 'port'?"),
        (["launch", "--model", "m", "--host", "0.0.0.0"], "set --api-key or --keys-file"),
        (["launch", "--model", "m", "--upstream", "http://h"], "exclude each other"),
        (["launch", "--upstream", "h"], "no server's URL"),
        (["launch", "--model", "m", "--prefill", "x"], "Invalid value for '--prefill'"),
        (["launch", "--model", "m", "--decode", "-1"], "launch.decode=-1 from --decode"),
        (["launch", "--model", "m", "--prefill", "1"], "nobody for decoding answers"),
        (["roles"], "no running cluster"),
        (["roles", "--run-dir", "x", "show"], "go behind `show`"),
        (["roles", "set", "instance-0", "chief"], "'chief' is not one of"),
        (["roles", "set", "instance-0", "decode"], "no running cluster"),
        (["roles", "set", "instance-0"], "Missing argument 'role'"),
        (["status"], "no running cluster"),
        (["stop"], "no running cluster"),
        (["status", "--run-dir", "none"], "no run in 'none'"),
        (["model", "fetch", "smolm2"], "did you mean 'smollm2'?"),
        (["config", "show", "--set", "x"], "has no '='"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_status_two(here, argv, expected) -> None:
    done = bana(*argv, cwd=here)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert expected in done.stderr
    assert "Traceback" not in done.stderr
    assert list(here.iterdir()) == []


def test_a_launch_that_is_ended_before_it_began_is_interrupted(here: Path) -> None:
    models = here / "cache" / "models"
    models.mkdir(parents=True)
    argv = [sys.executable, "-m", "bana.cli.main", "launch", "--model", "smollm2", "--port", "0"]
    with (models / "smollm2.lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = subprocess.Popen(
            argv,
            env={**os.environ, "BANA_CACHE": str(here / "cache")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert "waiting for another fetch" in process.stdout.readline()
        process.terminate()
        _, said = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, said) == (130, "")
    assert [path.name for path in models.iterdir()] == ["smollm2.lock"]


def test_port_in_use_leaves_nothing_behind(here: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = bana("launch", "--upstream", "http://127.0.0.1:9", "--port", port, cwd=here)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: port in use: 127.0.0.1:{port}")
    assert list(here.iterdir()) == []


def test_bad_variable_in_the_environment_is_refused(here: Path) -> None:
    done = bana("config", "show", cwd=here, BANA_ROUTING_POLCY="x")
    assert done.returncode == 2
    assert "did you mean 'policy'?" in done.stderr


def test_config_show_tells_values_and_origins_and_no_secret(here: Path) -> None:
    (here / "bana.toml").write_text("[auth]\nadmin_api_key = 'hunter2'\n[launch]\nport = 9\n")
    env = {"BANA_AUTH_API_KEY": "hunter3"}
    plain = bana("config", "show", "--origin", cwd=here, **env).stdout
    told = json.loads(bana("config", "show", "--json", "--origin", cwd=here, **env).stdout)
    bare = json.loads(bana("config", "show", "--json", cwd=here, **env).stdout)
    assert told["launch.port"] == {"value": 9, "origin": "file bana.toml"}
    assert told["auth.api_key"]["origin"] == "environment BANA_AUTH_API_KEY"
    assert told["limits.max_requests"]["origin"] == "default"
    assert bare == {name: row["value"] for name, row in told.items()}
    line = next(row for row in plain.splitlines() if row.startswith("port = 9"))
    assert line.endswith("# file bana.toml")
    for output in (plain, json.dumps(told), json.dumps(bare)):
        assert "hunter" not in output


def test_shown_configuration_can_be_used_again(here: Path) -> None:
    shown = bana("config", "show", "--set", "launch.port=9", cwd=here).stdout
    (here / "bana.toml").write_text(shown)
    again = bana("config", "show", cwd=here)
    assert again.returncode == 0, again.stderr
    assert again.stdout == shown


def test_dry_run_prints_the_commands_and_starts_nothing(here: Path) -> None:
    argv = ("launch", "--model", "org/model", "--instances", "2", "--port", "0", "--dry-run")
    argv += ("--set", "engine.force_cpu=true", "--api-key", "hunter2")
    plain = bana(*argv, "--", "--dtype", "float32", cwd=here)
    assert plain.returncode == 0, plain.stderr
    lines = [line for line in plain.stdout.splitlines() if "engine.serve" in line]
    assert len(lines) == 2
    assert all(line.endswith("--dtype float32") for line in lines)
    assert "router.main" in plain.stdout
    told = json.loads(bana(*argv, "--json", "--", "--dtype", "float32", cwd=here).stdout)
    assert [c["name"] for c in told["commands"]] == ["instance-0", "instance-1", "front-door"]
    assert "hunter2" not in plain.stdout + json.dumps(told)
    assert list(here.iterdir()) == []


def test_output_is_plain_where_it_is_no_terminal(here: Path) -> None:
    done = bana("model", "list", cwd=here)
    assert done.returncode == 0
    assert "not fetched" in done.stdout
    assert "\x1b" not in done.stdout
    assert json.loads(bana("model", "list", "--json", cwd=here).stdout)[0]["name"] == "smollm2"


def test_doctor_judges_by_severity(here: Path) -> None:
    done = bana("doctor", "--json", "--set", "launch.instances=256", cwd=here)
    findings = {row["name"]: row for row in json.loads(done.stdout)}
    assert {"sglang", "seams", "device", "memory", "open files", "ports"} <= set(findings)
    assert findings["sglang"]["severity"] == "ok"
    assert findings["seams"]["severity"] == "ok", findings["seams"]
    worst = {row["severity"] for row in findings.values()}
    assert done.returncode == (2 if "bad" in worst else int("warning" in worst))
    trouble = [row for row in findings.values() if row["severity"] != "ok"]
    assert all(row["evidence"] and row["remedy"] for row in trouble)


def test_doctor_counts_ranks_not_instances(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sglang_bana.cluster.placement.count_gpus", lambda: 3)
    launch = LaunchConfig(instances=2, sglang_args=("--tp-size", "2"))
    finding = examine_device(BanaConfig(launch=launch), {})
    assert finding.severity == "bad"
    assert "need 4 GPUs, visible are 3" in finding.evidence


def test_reader_that_goes_away_is_no_traceback(here: Path) -> None:
    shown = f"{sys.executable} -m bana.cli.main config show | head -n 1"
    done = subprocess.run(
        ["bash", "-c", shown], capture_output=True, text=True, timeout=TIMEOUT_S, cwd=here
    )
    assert done.stdout == "[launch]\n"
    assert done.stderr == ""
