from __future__ import annotations

from pathlib import Path

import pytest

from bana.eval.bench.trials import open_trials
from bana.slo.errors import ConfigError


def test_what_was_kept_is_recalled_by_the_next_run(tmp_path: Path) -> None:
    path = tmp_path / "x.partial.jsonl"
    with open_trials(path, "k") as log:
        log.append("a", {"x": 1.5})
    with open_trials(path, "k") as log:
        assert len(log) == 1
        assert log.recall("a") == {"x": 1.5}
        assert log.recall("b") is None


def test_trials_of_another_run_are_not_mixed_in_but_kept(tmp_path: Path) -> None:
    path = tmp_path / "x.partial.jsonl"
    with open_trials(path, "one") as log:
        log.append("a", {"x": 1.0})
    with open_trials(path, "two") as log:
        assert log.recall("a") is None
        log.append("a", {"x": 2.0})
    with open_trials(path, "one") as log:
        assert log.recall("a") == {"x": 1.0}


def test_a_torn_last_line_is_dropped_and_does_not_spoil_the_next(tmp_path: Path) -> None:
    path = tmp_path / "x.partial.jsonl"
    with open_trials(path, "k") as log:
        log.append("a", {"x": 1.0})
        log.append("b", {"x": 2.0})
    path.write_bytes(path.read_bytes()[:-7])
    with open_trials(path, "k") as log:
        assert (log.recall("a"), log.recall("b")) == ({"x": 1.0}, None)
        log.append("b", {"x": 3.0})
    with open_trials(path, "k") as log:
        assert log.recall("b") == {"x": 3.0}


def test_clear_forgets_everything_on_disk_too(tmp_path: Path) -> None:
    path = tmp_path / "x.partial.jsonl"
    with open_trials(path, "k") as log:
        log.append("a", {"x": 1.0})
        log.clear()
        assert log.recall("a") is None
        log.append("b", {"x": 2.0})
    with open_trials(path, "k") as log:
        assert (log.recall("a"), log.recall("b")) == (None, {"x": 2.0})


def test_a_second_run_on_the_same_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.partial.jsonl"
    with (
        open_trials(path, "k"),
        pytest.raises(ConfigError, match="another running"),
        open_trials(path, "k"),
    ):
        pass


def test_rubbish_in_the_middle_names_the_line_and_the_way_out(tmp_path: Path) -> None:
    path = tmp_path / "x.partial.jsonl"
    path.write_text("{}\n")
    with pytest.raises(ConfigError, match=r"line 1 .*--fresh"), open_trials(path, "k"):
        pass
