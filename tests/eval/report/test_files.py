import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from bana.eval.report.files import (
    NAMES,
    Existing,
    check_folder,
    read_run,
    write_report,
    write_run,
)
from bana.eval.report.records import Origin, ReportInput, StoredRun
from bana.eval.requests import Ending
from bana.slo.errors import BanaError, ConfigError

replace = msgspec.structs.replace


@pytest.fixture
def small(make_run) -> StoredRun:
    return make_run(rate_rps=2.0, window_s=10.0, tokens=8)


def listed(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.rglob("*"))


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """A disk that is full after `size` bytes of any file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_what_is_written_is_read_back(small: StoredRun, tmp_path: Path) -> None:
    files = write_run(tmp_path / "a" / "run", small)
    assert read_run(files.folder) == small
    assert listed(files.folder) == sorted(NAMES)
    assert {files.requests.name, files.summary.name, files.page.name} < set(NAMES)


def test_requests_are_lines_with_stable_keys_and_without_prompts(
    small: StoredRun, tmp_path: Path
) -> None:
    files = write_run(tmp_path / "run", small)
    rows = [json.loads(line) for line in files.requests.read_text().splitlines()]
    assert len(rows) == len(small.record.run.observed)
    assert len({tuple(row) for row in rows}) == 1
    assert {"index", "due_s", "ending", "slo_class", "ttft_s"} - set(rows[0]) == {"ttft_s"}
    assert not {"prompt", "text", "messages", "token_ids"} & set(rows[0])
    assert len(files.probes.read_text().splitlines()) == len(small.record.run.probes)
    assert len(files.samples.read_text().splitlines()) == len(small.record.run.samples)


def test_the_summary_is_plain_json(small: StoredRun, tmp_path: Path) -> None:
    files = write_run(tmp_path / "run", small)
    kept = json.loads(files.summary.read_text())
    assert kept["summary"]["overall"]["offered"] == small.summary.overall.offered
    assert kept["summary"]["sentence"] == small.summary.sentence
    assert kept["files"]["requests.jsonl"]["lines"] == len(small.record.run.observed)


def test_another_run_is_not_overwritten_unless_told(
    small: StoredRun, make_run, tmp_path: Path
) -> None:
    other = make_run(rate_rps=2.0, window_s=10.0, tokens=8, seed=9)
    write_run(tmp_path, small)
    with pytest.raises(ConfigError, match=r"already holds a run .*summary.json.*another folder"):
        write_run(tmp_path, other)
    assert read_run(tmp_path) == small
    write_run(tmp_path, other, Existing.REPLACE)
    assert read_run(tmp_path) == other
    assert listed(tmp_path) == sorted(NAMES)


def test_other_files_in_the_folder_are_left_alone(small: StoredRun, tmp_path: Path) -> None:
    (tmp_path / "server.log").write_text("kept")
    write_run(tmp_path, small)
    assert (tmp_path / "server.log").read_text() == "kept"


@pytest.mark.parametrize("size", [100, 20_000, 120_000])
def test_a_full_disk_leaves_nothing(make_run, tmp_path: Path, size: int) -> None:
    stored = make_run(rate_rps=6.0, window_s=60.0)
    with files_of_at_most(size), pytest.raises(ConfigError, match=r"cannot be written to .*folder"):
        write_run(tmp_path / "deep" / "run", stored)
    assert listed(tmp_path) == []


def test_a_full_disk_leaves_the_earlier_run(make_run, small: StoredRun, tmp_path: Path) -> None:
    write_run(tmp_path, small)
    stored = make_run(rate_rps=6.0, window_s=60.0)
    with files_of_at_most(120_000), pytest.raises(ConfigError):
        write_run(tmp_path, stored, Existing.REPLACE)
    assert read_run(tmp_path) == small
    assert listed(tmp_path) == sorted(NAMES)


def test_a_file_is_no_folder(small: StoredRun, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("x")
    with pytest.raises(ConfigError, match="is a file, allowed: a folder"):
        check_folder(path)
    with pytest.raises(ConfigError, match="cannot be written"):
        write_run(path / "run", small)
    assert path.read_text() == "x"


def test_a_folder_can_be_checked_before_measuring(small: StoredRun, tmp_path: Path) -> None:
    check_folder(tmp_path / "new" / "run")
    assert listed(tmp_path) == []
    write_run(tmp_path, small)
    with pytest.raises(ConfigError, match="already holds a run"):
        check_folder(tmp_path)
    check_folder(tmp_path, Existing.REPLACE)


def test_a_figure_that_is_no_number_is_refused(small: StoredRun, tmp_path: Path) -> None:
    broken = replace(small, summary=replace(small.summary, offered_rps=float("inf")))
    with pytest.raises(BanaError, match=r"no number .*offered_rps"):
        write_run(tmp_path / "run", broken)
    assert listed(tmp_path) == []


def test_credentials_are_not_written(small: StoredRun, tmp_path: Path) -> None:
    target = "http://me:hunter2@127.0.0.1:1/v1?key=hunter3"
    stored = StoredRun(
        record=replace(small.record, about=replace(small.record.about, target=target)),
        summary=replace(small.summary, target=target),
        origin=Origin(settings={"api_key": "hunter4", "headers": {"authorization": "hunter5"}}),
    )
    write_run(tmp_path, stored)
    for path in tmp_path.iterdir():
        assert "hunter" not in path.read_text(), path.name
    assert read_run(tmp_path).summary.target == "http://127.0.0.1:1/v1"


def test_text_that_utf8_cannot_hold_does_not_cost_the_run(small: StoredRun, tmp_path: Path) -> None:
    run = small.record.run
    torn = replace(run.observed[0], ending=Ending.FAILED, error="bad \ud800 text")
    run = replace(run, observed=(torn, *run.observed[1:]))
    write_run(tmp_path, replace(small, record=replace(small.record, run=run)))
    assert read_run(tmp_path).record.run.observed[0].error == "bad ? text"


def test_a_folder_without_a_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"no run in .*summary\.json.*that a load run has written"
    ):
        read_run(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["requests.jsonl", "probes.jsonl", "samples.jsonl"])
def test_a_missing_file_is_named(small: StoredRun, tmp_path: Path, name: str) -> None:
    write_run(tmp_path, small)
    (tmp_path / name).unlink()
    with pytest.raises(ConfigError, match=f"{name} cannot be read"):
        read_run(tmp_path)


def test_a_torn_line_is_named(small: StoredRun, tmp_path: Path) -> None:
    files = write_run(tmp_path, small)
    files.requests.write_bytes(files.requests.read_bytes()[:-20])
    with pytest.raises(ConfigError, match=rf"line {len(small.record.run.observed)} of .*requests"):
        read_run(tmp_path)


def test_missing_lines_are_counted(small: StoredRun, tmp_path: Path) -> None:
    files = write_run(tmp_path, small)
    lines = files.requests.read_bytes().splitlines(keepends=True)
    files.requests.write_bytes(b"".join(lines[:-1]))
    with pytest.raises(ConfigError, match=rf"has {len(lines) - 1} lines, its run wrote"):
        read_run(tmp_path)


def test_the_requests_of_another_run_are_noticed(
    small: StoredRun, make_run, tmp_path: Path
) -> None:
    files = write_run(tmp_path / "a", small)
    run = small.record.run
    changed = replace(run.observed[0], due_s=run.observed[0].due_s + 1e-3)
    run = replace(run, observed=(changed, *run.observed[1:]))
    other = write_run(tmp_path / "b", replace(small, record=replace(small.record, run=run)))
    files.requests.write_bytes(other.requests.read_bytes())
    with pytest.raises(ConfigError, match="is not the file that its run wrote"):
        read_run(tmp_path / "a")


@pytest.mark.parametrize("format_", [0, 2])
def test_another_format_is_refused(small: StoredRun, tmp_path: Path, format_: int) -> None:
    files = write_run(tmp_path, small)
    kept = json.loads(files.summary.read_text())
    files.summary.write_text(json.dumps({**kept, "format": format_}))
    with pytest.raises(ConfigError, match=f"has format {format_}, allowed: 1"):
        read_run(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"format": 1}', "\udcff"])
def test_a_damaged_summary_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "summary.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(ConfigError, match="is no summary of a run"):
        read_run(tmp_path)


def test_a_page_of_several_runs_is_written_in_place(grid: ReportInput, tmp_path: Path) -> None:
    path = tmp_path / "grid" / "report.html"
    write_report(path, grid)
    write_report(path, grid)
    assert path.read_text().startswith("<!doctype html>")
    assert listed(path.parent) == ["report.html"]


def test_a_page_that_cannot_be_written_leaves_the_earlier_one(
    grid: ReportInput, tmp_path: Path
) -> None:
    path = tmp_path / "report.html"
    path.write_text("earlier")
    with files_of_at_most(1000), pytest.raises(ConfigError, match="report cannot be written"):
        write_report(path, grid)
    assert path.read_text() == "earlier"
    assert listed(tmp_path) == ["report.html"]
