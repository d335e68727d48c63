from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from bana.eval.bench import facts, placement
from bana.eval.bench.errors import BenchError

IDENTITY = ["-c", "user.name=nobody", "-c", "user.email=nobody@example.org"]


def run_git(folder: Path, *words: str) -> None:
    subprocess.run(
        ["git", "-C", str(folder), *IDENTITY, *words], check=True, capture_output=True, timeout=60
    )


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file in a fresh checkout that stands for the benchmarks' own source."""
    file = tmp_path / "facts.py"
    file.write_text("one\n")
    run_git(tmp_path, "init", "-q")
    monkeypatch.setattr(facts, "__file__", str(file))
    return file


def test_a_clean_checkout_is_its_commit(source: Path) -> None:
    run_git(source.parent, "add", source.name)
    run_git(source.parent, "commit", "-q", "-m", "one")

    found = facts.read_source()

    assert len(found.commit) == 40
    assert found.digest == ""


def test_changes_show_and_are_told_apart(source: Path) -> None:
    run_git(source.parent, "add", source.name)
    run_git(source.parent, "commit", "-q", "-m", "one")
    clean = facts.read_source()
    source.write_text("two\n")
    two = facts.read_source()
    source.write_text("three\n")
    three = facts.read_source()

    assert two.commit == three.commit == f"{clean.commit}+dirty"
    assert two.digest != three.digest


def test_another_projects_checkout_is_not_ours(source: Path) -> None:
    # Installed into a folder that lies in some repository, but untracked there.
    assert facts.read_source().commit == "unknown"
    assert source.exists()


def test_one_core_is_too_few_and_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {3})

    with pytest.raises(BenchError, match="at least 2 usable cores, found 1"):
        placement.plan_router_placement()


@pytest.mark.parametrize("cores", [{0, 1}, {0, 1, 2}, set(range(8))])
def test_the_server_shares_no_core_with_its_load(
    cores: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: cores)

    for plan in (placement.plan_router_placement(), placement.plan_engine_placement()):
        assert not plan.server & plan.client
        assert not plan.server & plan.upstream
        assert plan.server | plan.client | plan.upstream == cores
