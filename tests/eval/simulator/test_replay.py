"""Decisions of a run, decided again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bana.eval.requests import Limits
from bana.eval.simulator.decision_file import DecisionFile
from bana.eval.simulator.replay import replay_log
from bana.slo.decisions import LogHeader, PolicyChoice
from bana.slo.errors import ConfigError

Make = Callable[..., Any]


@pytest.fixture
def log(tmp_path: Path, server: Any, ask: Make) -> Path:
    """A run in which all three questions are asked, under load."""
    path = tmp_path / "decisions.jsonl"
    header = LogHeader(
        seed=3,
        order=PolicyChoice("budget", {"guard": 2.0}),
        governor=PolicyChoice("tpot"),
        admission=PolicyChoice("reject_infeasible", {"guard": 0.5}),
    )
    limits = Limits(ttft_s=0.8, tpot_s=0.03)
    asks = [
        ask(due_s=0.03 * n, prompt=20 + 37 * n % 90, output=4, limits=limits) for n in range(90)
    ]
    ready = server.but(
        order="budget",
        governor="tpot",
        admission="reject_infeasible",
        options={"order": {"guard": 2.0}, "admission": {"guard": 0.5}},
        seed=3,
        chunk_tokens=128,
    )
    with DecisionFile(path, header) as file:
        ready.serve(asks, file)
    return path


def rewrite(path: Path, number: int, change: Callable[[dict[str, Any]], None]) -> None:
    lines = path.read_bytes().splitlines()
    tree = msgspec.json.decode(lines[number])
    change(tree)
    lines[number] = msgspec.json.encode(tree)
    path.write_bytes(b"\n".join(lines) + b"\n")


def find_line(path: Path, kind: str) -> int:
    kinds = [msgspec.json.decode(line)["kind"] for line in path.read_bytes().splitlines()]
    return kinds.index(kind)


def test_every_line_is_decided_alike(log: Path) -> None:
    found = replay_log(log)
    assert found.decisions == len(log.read_bytes().splitlines()) - 1 > 100
    assert (found.differing, found.mismatches) == (0, ())


def test_any_part_of_a_log_can_be_replayed(log: Path) -> None:
    header, *lines = log.read_bytes().splitlines()
    log.write_bytes(b"\n".join([header, *lines[50:60]]))
    found = replay_log(log)
    assert (found.decisions, found.differing) == (10, 0)


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("order", lambda tree: tree["plan"]["reasons"].__setitem__(0, "other")),
        (
            "order",
            lambda tree: tree["view"].update(deadline_s=[-1e6] * len(tree["view"]["deadline_s"])),
        ),
        ("governor", lambda tree: tree["plan"].update(prefill_tokens=1)),
        ("governor", lambda tree: tree["view"].update(prefill_tokens=3)),
        ("admission", lambda tree: tree["plan"].update(reason="other")),
        ("admission", lambda tree: tree["view"].update(ahead_s=1e6)),
    ],
)
def test_a_line_that_was_tampered_with_is_found(log: Path, kind: str, change: Any) -> None:
    number = find_line(log, kind)
    rewrite(log, number, change)
    found = replay_log(log)
    assert found.differing == 1
    [mismatch] = found.mismatches
    assert (mismatch.line, mismatch.kind) == (number + 1, kind)
    assert mismatch.logged != mismatch.decided


def test_another_option_decides_otherwise(log: Path) -> None:
    rewrite(log, 0, lambda tree: tree["order"].update(options={"guard": 0.1}))
    found = replay_log(log)
    assert found.differing > 0
    assert {mismatch.kind for mismatch in found.mismatches} == {"order"}


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (b"", "is empty"),
        (b"{}\n", "no line of a decision log"),
        (b'{"kind":"header","seed":0,"version":9}\n', "version 9, allowed: 1"),
        (b'{"kind":"header","seed":0,"order":{"name":"fcsf"}}\n', "did you mean 'fcfs'"),
        (b'{"kind":"header","seed":0}\nnonsense\n', ":2: no line of a decision log"),
        (b'{"kind":"header","seed":0}\n{"kind":"header","seed":0}\n', ":2: a second header"),
    ],
)
def test_what_is_no_log_is_one_line(tmp_path: Path, text: bytes, part: str) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(text)
    with pytest.raises(ConfigError) as caught:
        replay_log(path)
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_log_without_its_policy_is_refused(log: Path) -> None:
    rewrite(log, 0, lambda tree: tree.pop("admission"))
    with pytest.raises(ConfigError, match="names no admission policy"):
        replay_log(log)


def test_a_log_begins_with_its_header(log: Path) -> None:
    log.write_bytes(b"\n".join(log.read_bytes().splitlines()[1:]))
    with pytest.raises(ConfigError, match="a decision before any header"):
        replay_log(log)


def test_a_log_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot write decisions"):
        DecisionFile(tmp_path / "none" / "log.jsonl", LogHeader(0))
