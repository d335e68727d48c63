"""Run directories: private, found again, never confused with those of the dead."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bana.slo.errors import ConfigError
from sglang_bana import leftovers
from sglang_bana.cluster.control import find_live_run
from sglang_bana.cluster.procfs import is_same_process, read_start_ticks
from sglang_bana.cluster.run_dir import (
    KEPT_RUNS,
    OWN,
    RunDir,
    choose_run_dir,
    is_live,
    list_runs,
    locate_base,
    read_state,
    remove_old_runs,
)
from sglang_bana.status import RunState
from sglang_bana.store.main import locate_pins

OWN_TICKS = read_start_ticks(os.getpid()) or 0


def write_run(root: Path, pid: int, ticks: int) -> RunDir:
    run = RunDir(root)
    run.create()
    run.write_state(
        RunState(
            version="0",
            pid=pid,
            started_ticks=ticks,
            url="http://127.0.0.1:1",
            model="m",
            phase="ready",
            processes=(),
        )
    )
    return run


def test_created_folder_is_private(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "a" / "run")
    run.create()
    run.write_key("k")
    for path in (run.root, run.root / "logs", run.key_file):
        assert path.stat().st_mode & 0o077 == 0


def test_folders_that_others_may_read_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir(mode=0o755)
    with pytest.raises(ConfigError, match="open to others"):
        RunDir(folder).create()


def test_folders_with_other_files_are_refused_and_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir(mode=0o700)
    (folder / "thesis").write_text("precious")
    with pytest.raises(ConfigError, match="holds other files"):
        RunDir(folder).create()
    assert (folder / "thesis").read_text() == "precious"


def test_a_folder_with_a_foreign_state_file_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir(mode=0o700)
    (folder / "state.json").write_text('{"of": "another program"}')
    (folder / "thesis").write_text("precious")
    with pytest.raises(ConfigError, match=r"holds other files \(thesis"):
        RunDir(folder).create()
    assert (folder / "thesis").read_text() == "precious"


def test_a_link_is_no_run_directory(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(ConfigError, match="is not a folder"):
        RunDir(tmp_path / "link").create()


def test_paths_too_long_for_the_sockets_of_instances_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"too long for sockets in it: 71 bytes, allowed 70"):
        RunDir(Path("/tmp/" + "x" * 66)).create(["instance-0", "instance-255"])


def test_a_folder_that_was_never_used_is_removed_again(tmp_path: Path) -> None:
    unused, used = RunDir(tmp_path / "unused"), write_run(tmp_path / "used", 1, 1)
    unused.create()
    for run in (unused, used):
        run.remove_unused()
    assert (unused.root.exists(), used.state_file.exists()) == (False, True)


def test_shared_memory_noted_in_a_run_goes_with_it(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(leftovers, "SHARED_MEMORY", tmp_path)
    run = write_run(tmp_path / "r", os.getpid(), 1)
    record = tmp_path / "sglang_loads_x.shm"
    record.touch()
    folder = leftovers.temporary_folder(run.root, "instance-0")
    folder.mkdir()
    leftovers.record_shared_memory(folder, record)
    run.remove_leftovers()
    assert (record.exists(), folder.exists()) == (False, False)


def test_unusable_places_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="--run-dir"):
        RunDir(tmp_path / "file" / "run").create()


def test_runtime_directory_comes_before_the_cache(tmp_path: Path) -> None:
    environ = {"XDG_RUNTIME_DIR": str(tmp_path), "BANA_CACHE": "/c"}
    assert locate_base(environ) == tmp_path / "bana"
    assert locate_base({"BANA_CACHE": "/c", "XDG_RUNTIME_DIR": "/nowhere"}) == Path("/c/run")
    assert choose_run_dir("", environ).root.parent == tmp_path / "bana"
    assert choose_run_dir(str(tmp_path / "x"), environ).root == tmp_path / "x"


def test_own_process_is_live_and_a_reused_pid_is_not(tmp_path: Path) -> None:
    live = write_run(tmp_path / "a", os.getpid(), OWN_TICKS)
    reused = write_run(tmp_path / "b", os.getpid(), OWN_TICKS + 1)
    assert is_live(read_state(live))
    assert not is_live(read_state(reused))
    assert not is_same_process(2**22 + 1, 5)


def test_newest_live_run_is_found_behind_newer_dead_ones(tmp_path: Path) -> None:
    base = tmp_path / "bana"
    for age, (name, ticks) in enumerate([("dead", 1), ("new", OWN_TICKS), ("old", OWN_TICKS)]):
        run = write_run(base / name, os.getpid(), ticks)
        os.utime(run.state_file, (1000 - age, 1000 - age))
    environ = {"XDG_RUNTIME_DIR": str(tmp_path)}
    assert find_live_run(None, environ).run_dir.root == base / "new"
    assert [run.root.name for run in list_runs(base)] == ["dead", "new", "old"]


def test_without_a_run_the_next_step_is_told(tmp_path: Path) -> None:
    environ = {"XDG_RUNTIME_DIR": str(tmp_path)}
    with pytest.raises(ConfigError, match="start one with `bana launch`"):
        find_live_run(None, environ)
    with pytest.raises(ConfigError, match=r"no readable state\.json; name the folder"):
        find_live_run(str(tmp_path), environ)
    write_run(tmp_path / "r", os.getpid(), 1)
    with pytest.raises(ConfigError, match="has ended"):
        find_live_run(str(tmp_path / "r"), environ)


def test_live_run_directories_are_not_taken_twice(tmp_path: Path) -> None:
    run = write_run(tmp_path / "r", os.getpid(), OWN_TICKS)
    with pytest.raises(ConfigError, match="belongs to a running cluster"):
        RunDir(run.root).create()


def test_directory_of_an_ended_run_is_emptied_and_used_again(tmp_path: Path) -> None:
    run = write_run(tmp_path / "r", os.getpid(), 1)
    (run.root / "instance-0.load").write_text("")
    (run.root / "instance-0.tmp").mkdir()
    run.create()
    assert {path.name for path in run.root.iterdir()} == {"state.json", "logs"}


def test_a_run_whose_state_is_not_understood_is_left_alone(tmp_path: Path) -> None:
    run = write_run(tmp_path / "r", os.getpid(), 1)
    run.state_file.write_text('{"of": "another version"}')
    (run.root / "instance-0.json").write_text("")
    remove_old_runs(tmp_path)
    assert (run.root / "instance-0.json").exists()


def test_only_the_newest_ended_runs_keep_their_logs(tmp_path: Path) -> None:
    for number in range(KEPT_RUNS + 3):
        run = write_run(tmp_path / f"r{number}", os.getpid(), 1)
        os.utime(run.state_file, (number, number))
    live = write_run(tmp_path / "live", os.getpid(), OWN_TICKS)
    os.utime(live.state_file, (0, 0))
    remove_old_runs(tmp_path)
    left = {run.root.name for run in list_runs(tmp_path)}
    assert left == {f"r{number}" for number in range(3, KEPT_RUNS + 3)} | {"live"}


OURS = ("control.key", "front-door.json", "instance-0.json", "instance-12.json.pending")
OTHERS = ("thesis", "notes.json", "instance-0.json.bak", "instance-x.load", "my.tmp", "control_key")


def fill(run: RunDir) -> None:
    for name in (*OURS, *OTHERS, "instance-0.load"):
        (run.root / name).write_text("precious")
    (run.root / "instance-0.tmp").mkdir()
    (run.root / "instance-0.tmp" / "socket").touch()
    (run.root / "folder.tmp").mkdir()
    (run.root / "folder.tmp" / "thesis").write_text("precious")


def test_only_names_of_ours_are_removed_from_a_run_directory(tmp_path: Path) -> None:
    run = write_run(tmp_path / "r", 1, 1)
    fill(run)
    run.remove_leftovers()
    left = {path.name for path in run.root.iterdir()}
    assert left == {*OTHERS, "folder.tmp", "state.json", "logs"}
    assert (run.root / "folder.tmp" / "thesis").read_text() == "precious"
    # The next run in it spares them as well.
    run.create()
    assert {path.name for path in run.root.iterdir()} == left


def test_an_old_run_goes_whole_and_what_is_not_its_own_stays(tmp_path: Path) -> None:
    mixed, own = write_run(tmp_path / "mixed", 1, 1), write_run(tmp_path / "own", 1, 1)
    (own.root / "logs" / "instance-0.log").touch()
    fill(mixed)
    for run in (mixed, own):
        run.remove()
    assert {path.name for path in mixed.root.iterdir()} == {*OTHERS, "folder.tmp"}
    assert not own.root.exists()


def test_what_is_pinned_outlives_a_run_and_goes_with_its_folder(tmp_path: Path) -> None:
    run = write_run(tmp_path / "r", 1, 1)
    run.pins_file.write_text("pins")
    assert locate_pins(run.store_endpoint) == run.pins_file
    for name in ("pending", "bad"):
        run.pins_file.with_name(f"{run.pins_file.name}.{name}").touch()
    # As `bana store serve` leaves it.
    run.remove_leftovers()
    run.state_file.unlink()
    run.create()
    assert {path.name for path in run.root.iterdir()} == {"store.pins", "logs"}
    run.remove()
    assert not run.root.exists()


def test_what_a_run_writes_bears_names_of_ours(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "r")
    written = [
        run.key_file,
        run.spec_file("front-door"),
        run.spec_file("instance-255"),
        Path(run.load_endpoint("instance-0").removeprefix("ipc://")),
        leftovers.temporary_folder(run.root, "instance-0"),
        leftovers.temporary_folder(run.root, "front-door"),
    ]
    assert all(OWN.fullmatch(path.name) for path in written)
    assert all(path.parent == run.root for path in written)
