"""`bana store …` against a daemon that serves alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sglang_bana.cluster.run_dir import RunDir

DEADLINE_S = 60.0
KEY = "00112233445566778899aabbccddeeff"
BANA = [sys.executable, "-m", "bana.cli.main", "store"]


class Alone:
    """One `bana store serve`, and the commands that talk to it."""

    def __init__(self, root: Path) -> None:
        self.run_dir = RunDir(root / "run")
        tiers = [
            {
                "path": str(root / "tier"),
                "capacity_bytes": 2**22,
                "options": {"segment_bytes": 2**20},
            }
        ]
        sets = {
            "store.arena_bytes": str(2**21),
            "store.slot_bytes": "4096",
            "store.tiers": json.dumps(tiers),
        }
        flags = [word for name, value in sets.items() for word in ("--set", f"{name}={value}")]
        self.log = (root / "log").open("w+")
        self.process = subprocess.Popen(
            [*BANA, "serve", "--run-dir", str(self.run_dir.root), *flags],
            stdout=self.log,
            stderr=subprocess.STDOUT,
        )
        end_s = time.monotonic() + DEADLINE_S
        while not self.run_dir.store_socket.exists():
            assert time.monotonic() < end_s, (root / "log").read_text()
            time.sleep(0.05)

    def ask(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*BANA, *words, "--run-dir", str(self.run_dir.root)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(DEADLINE_S)
        self.log.close()
        return status


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Alone]:
    """A daemon without a cluster."""
    served = Alone(tmp_path_factory.mktemp("alone"))
    yield served
    assert served.stop() == 0
    assert not served.run_dir.arena_file.exists()
    assert not served.run_dir.root.exists()


def test_status_shows_every_place(alone: Alone) -> None:
    said = json.loads(alone.ask("status", "--json").stdout)
    assert [place["name"] for place in said["places"]] == ["arena", "directory-1"]
    assert said["slot_bytes"] == 4096
    assert "directory-1" in alone.ask("status").stdout


def test_ls_of_nothing_is_empty(alone: Alone) -> None:
    assert json.loads(alone.ask("ls", "--json").stdout) == {"rows": [], "omitted": 0}
    assert alone.ask("ls").returncode == 0


def test_a_page_that_is_not_known_is_a_status_of_its_own(alone: Alone) -> None:
    done = alone.ask("inspect", KEY, "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["is_known"] is False
    assert alone.ask("inspect", "xy").returncode == 2


def test_clear_asks_or_is_told_not_to(alone: Alone) -> None:
    plan = alone.ask("clear", "--dry-run")
    assert plan.returncode == 0
    assert "to be given up" in plan.stdout
    refused = alone.ask("clear")
    assert refused.returncode == 2
    assert "--yes" in refused.stderr
    done = json.loads(alone.ask("clear", "--yes", "--json").stdout)
    assert (done["mode"], done["size_bytes"]) == ("carry_out", 0)


@pytest.mark.parametrize("verb", ["clear", "purge"])
def test_only_old_pages_may_be_cleared(alone: Alone, verb: str) -> None:
    words = (verb, "--older", "90s", "--namespace", "00000001")
    plan = json.loads(alone.ask(*words, "--dry-run", "--json").stdout)
    assert plan["pages"] == {"arena": 0, "directory-1": 0}
    assert json.loads(alone.ask(*words, "--yes", "--json").stdout)["mode"] == "carry_out"
    refused = alone.ask(verb, "--older", "2 weeks", "--yes")
    assert refused.returncode == 2
    assert "'2 weeks', allowed: a number > 0 with s, m, h or d" in refused.stderr
    assert refused.stderr.count("\n") == 1


def test_warm_pin_unpin_and_verify_say_what_they_did(alone: Alone, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(KEY)
    for verb in ("warm", "pin"):
        done = json.loads(alone.ask(verb, str(keys), "--json").stdout)
        assert done["pages"] == {"asked": 1, "in_arena": 0}
        assert done["remark"] == "missing"
        assert (
            json.loads(alone.ask(verb, str(keys), "--dry-run", "--json").stdout)["mode"] == "plan"
        )
    assert json.loads(alone.ask("unpin", "--yes", "--json").stdout)["pages"] == {"pinned": 0}
    verified = alone.ask("verify", "--json")
    assert (verified.returncode, json.loads(verified.stdout)["pages"]) == (0, {})


def test_orders_need_the_run_s_own_key(alone: Alone) -> None:
    key_file, secret = alone.run_dir.key_file, alone.run_dir.key_file.read_text()
    assert os.stat(key_file).st_mode & 0o077 == 0
    try:
        key_file.write_text("another")
        denied = alone.ask("clear", "--yes")
    finally:
        key_file.write_text(secret)
    assert denied.returncode == 2
    assert "admin key" in denied.stderr


def test_a_second_daemon_is_refused(alone: Alone) -> None:
    refused = alone.ask("serve")
    assert refused.returncode == 2
    assert "running" in refused.stderr


def test_without_a_run_there_is_no_store(tmp_path: Path) -> None:
    done = subprocess.run(
        [*BANA, "status", "--run-dir", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 2
    assert "no run" in done.stderr
