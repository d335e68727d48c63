"""`bana demo` as a user meets it: three kinds of client are answered, and nothing is left."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections import Counter
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

MARK = "TEST_DEMO_MARK"
DEADLINE_S = 600.0
CLIENTS = ("OpenAI client", "SGLang program", "plain HTTP")


def list_marked(mark: str) -> list[str]:
    """The command lines of the living processes that have `mark` in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            is_ours = process.environ().get(MARK) == mark
            if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline()))
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def list_answers(output: str) -> list[tuple[str, str]]:
    """Which client was answered, and the line of the answer."""
    lines = output.splitlines()
    heads = [(i, c) for i, line in enumerate(lines) for c in CLIENTS if line.startswith(c)]
    return [(client, lines[index + 1]) for index, client in heads]


def test_three_kinds_of_client_are_answered_and_nothing_is_left(llama_fixture: Path) -> None:
    mark = uuid.uuid4().hex
    argv = [sys.executable, "-m", "bana.cli.main", "demo", "--instances", "1"]
    # Wide enough for every answer to stay on its line.
    own = {MARK: mark, "COLUMNS": "400", "NO_COLOR": "1"}
    done = subprocess.run(
        [*argv, "--model", str(llama_fixture)],
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ready at http://127.0.0.1:" in done.stdout
    answers = list_answers(done.stdout)
    assert Counter(client for client, _ in answers) == {
        "OpenAI client": 2,
        "SGLang program": 3,
        "plain HTTP": 1,
    }
    assert all(answer.startswith("  ") and answer.strip() for _, answer in answers)
    # Both OpenAI answers, the streaming program and plain HTTP tell their times.
    assert done.stdout.count("first token ") == 4
    assert "requests met their limits" in done.stdout
    assert list_marked(mark) == []
