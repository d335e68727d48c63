"""The arena and its views: whose file it is, slots, generations, two processes."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from bana.radix_global import arena as arena_module
from bana.radix_global.arena import Arena
from bana.radix_global.arena_layout import HEADER_BYTES, ArenaHeader, ArenaLayout, pack_header
from bana.radix_global.arena_view import ArenaView
from bana.radix_global.memory_room import Room
from bana.slo.errors import ConfigError, StoreError

LAYOUT = ArenaLayout(4, 5_000)
Make = Callable[..., Arena]
MAKE_AND_DIE = """
import os, sys
from pathlib import Path
from bana.radix_global.arena import Arena
from bana.radix_global.arena_layout import ArenaLayout
arena = Arena(Path(sys.argv[1]), ArenaLayout(4, 5_000), 77)
arena.view(arena.take(1)[0])[:5] = b"alive"
print("made", flush=True)
sys.stdin.readline()
os.kill(os.getpid(), 9)
"""
FILL_AND_WATCH = """
import sys
from pathlib import Path
from bana.radix_global.arena_view import ArenaView
view = ArenaView(Path(sys.argv[1]))
slot = int(sys.stdin.readline())
view.view(slot)[:] = bytes([slot + 1]) * view.layout.slot_bytes
print(view.generation(slot), flush=True)
sys.stdin.readline()
print(view.generation(slot), flush=True)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the arena of a test lies."""
    return tmp_path / "arena"


@pytest.fixture
def make(path: Path) -> Iterator[Make]:
    """A function that makes an arena, closed at the end."""
    made: list[Arena] = []

    def make_one(at: Path = path, layout: ArenaLayout = LAYOUT, epoch: int = 7) -> Arena:
        made.append(Arena(at, layout, epoch))
        return made[-1]

    yield make_one
    for arena in made:
        arena.close()


def _start(script: str, path: Path) -> subprocess.Popen[str]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-c", script, str(path)], text=True, **pipes)


def _answer(child: subprocess.Popen[str], line: str) -> str:
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(f"{line}\n")
    child.stdin.flush()
    return child.stdout.readline().strip()


def test_the_file_is_private_whole_and_allocated(make: Make, path: Path) -> None:
    make()
    status = path.stat()
    assert status.st_mode & 0o777 == 0o600
    assert status.st_size == LAYOUT.file_bytes
    assert status.st_blocks * 512 >= LAYOUT.file_bytes


def test_what_one_side_writes_the_other_reads(make: Make, path: Path) -> None:
    arena = make()
    view = ArenaView(path)
    assert (view.layout, view.epoch) == (LAYOUT, 7)
    for slot in arena.take(4):
        arena.view(slot)[:] = bytes([slot + 1]) * 5_000
    for slot in range(4):
        assert view.view(slot) == bytes([slot + 1]) * 5_000
    view.view(2)[-1] = 0
    assert arena.view(2)[-1] == 0
    assert arena.view(3)[0] == 4


def test_a_generation_rises_when_its_slot_is_freed_and_only_then(make: Make, path: Path) -> None:
    arena = make()
    view = ArenaView(path)
    slots = arena.take(3)
    before = [view.generation(slot) for slot in range(4)]
    arena.free(slots[:2])
    assert set(arena.take(2)) == set(slots[:2])
    after = [view.generation(slot) for slot in range(4)]
    rises = {slot: after[slot] - before[slot] for slot in range(4)}
    assert rises == {slot: int(slot in slots[:2]) for slot in range(4)}
    assert after == [arena.generation(slot) for slot in range(4)]


def test_nothing_of_one_life_is_valid_in_the_next(make: Make) -> None:
    first = make(epoch=5)
    slot = first.take(1)[0]
    old = first.generation(slot)
    first.close()
    second = make(epoch=6)
    for _ in range(1_000):
        second.free(second.take(4))
        assert second.generation(slot) != old


def test_a_slot_is_freed_once_and_an_error_frees_nothing(make: Make) -> None:
    arena = make()
    one, two = arena.take(2)
    for bad in ([one, one], [one, 3], [two, 4], [-1]):
        with pytest.raises(StoreError, match="freed"):
            arena.free(bad)
    assert arena.free_slots == 2
    assert arena.generation(one) == arena.generation(3)
    arena.free([one, two])
    with pytest.raises(StoreError, match="free it once"):
        arena.free([one])


def test_fewer_slots_when_there_are_fewer_and_none_for_a_negative_count(make: Make) -> None:
    arena = make()
    assert sorted(arena.take(9)) == [0, 1, 2, 3]
    assert arena.take(1) == ()
    with pytest.raises(StoreError, match="take -1 slots"):
        arena.take(-1)


@pytest.mark.parametrize("slot", [-1, 4])
def test_no_such_slot_anywhere(slot: int, make: Make, path: Path) -> None:
    arena, view = make(), ArenaView(path)
    for ask in (arena.view, arena.generation, view.view, view.generation):
        with pytest.raises(ValueError, match=r"allowed: 0\.\.3"):
            ask(slot)


def test_an_instance_maps_generations_read_only(make: Make, path: Path) -> None:
    def mapped() -> list[str]:
        lines = Path("/proc/self/maps").read_text().splitlines()
        return sorted(f"{line.split()[1]} {line.split()[2]}" for line in lines if str(path) in line)

    make()
    before = mapped()
    view = ArenaView(path)
    slots_at = f"{view.layout.slots_at:08x}"
    added = mapped()
    for line in before:
        added.remove(line)
    assert added == ["r--s 00000000", f"rw-s {slots_at}"]


def test_a_closed_view_gives_no_more_slots_and_those_given_stay(make: Make, path: Path) -> None:
    arena = make()
    arena.view(1)[:3] = b"abc"
    view = ArenaView(path)
    slot = view.view(1)
    view.close()
    view.close()
    with pytest.raises(StoreError, match="no longer mapped"):
        view.view(1)
    assert slot[:3] == b"abc"


def test_closing_takes_the_name_away_and_mappings_stay(make: Make, path: Path) -> None:
    arena = make()
    view = ArenaView(path)
    arena.close()
    arena.close()
    assert not path.exists()
    generation = view.generation(0)
    view.view(0)[:] = bytes(5_000)
    assert view.generation(0) == generation


def test_closing_leaves_another_file_of_the_same_name_alone(make: Make, path: Path) -> None:
    arena = make()
    path.unlink()
    path.write_text("somebody else's")
    arena.close()
    assert path.read_text() == "somebody else's"


def test_mappings_and_descriptors_are_given_back(path: Path) -> None:
    def count() -> tuple[int, int]:
        gc.collect()
        maps = Path("/proc/self/maps").read_text()
        return len(os.listdir("/proc/self/fd")), maps.count(str(path))

    before = count()
    arena, view = Arena(path, LAYOUT, 1), ArenaView(path)
    assert count() > before
    slot = view.view(0)
    arena.close()
    view.close()
    del arena, view
    assert count()[1] == 1
    del slot
    assert count() == before


def test_a_killed_daemon_leaves_a_mapping_that_is_harmless_and_a_file_to_replace(
    make: Make, path: Path
) -> None:
    child = _start(MAKE_AND_DIE, path)
    assert child.stdout is not None
    assert child.stdout.readline() == "made\n"
    view = ArenaView(path)
    generation = view.generation(0)
    with pytest.raises(ConfigError, match="a running store daemon has it"):
        make()
    assert path.exists()
    _answer(child, "die")
    assert child.wait(30) == -9
    child.communicate()
    make(epoch=78)
    assert (view.epoch, ArenaView(path).epoch) == (77, 78)
    assert view.generation(0) == generation
    assert view.view(0)[:5] == b"alive"
    view.view(0)[:5] = b"still"
    assert ArenaView(path).view(0)[:5] == bytes(5)


def test_a_generation_is_seen_by_another_process(make: Make, path: Path) -> None:
    arena = make()
    child = _start(FILL_AND_WATCH, path)
    slot = arena.take(1)[0]
    before = arena.generation(slot)
    assert _answer(child, str(slot)) == str(before)
    assert arena.view(slot) == bytes([slot + 1]) * 5_000
    arena.free([slot])
    assert _answer(child, "look") == str(before + 1)
    assert child.communicate(timeout=30) == ("", "")


@pytest.mark.parametrize("left", [b"", pack_header(ArenaHeader(LAYOUT, 3))])
def test_what_was_only_begun_is_replaced(left: bytes, make: Make, path: Path) -> None:
    path.write_bytes(left)
    make()
    assert ArenaView(path).epoch == 7


def test_another_file_is_left_alone_and_refused(make: Make, path: Path) -> None:
    path.write_text("somebody else's text, longer than a header would be, and kept as it is")
    with pytest.raises(ConfigError, match=r"no arena.*name another file"):
        make()
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="does not begin as an arena"):
        ArenaView(path)
    assert path.read_text().startswith("somebody")


def test_links_folders_and_pipes_are_refused(make: Make, tmp_path: Path, path: Path) -> None:
    make()
    (tmp_path / "link").symlink_to(path)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "folder", "pipe"):
        with pytest.raises(ConfigError, match=f"arena .*{name}: "):
            make(tmp_path / name)
        with pytest.raises(ConfigError, match=f"arena .*{name}: "):
            ArenaView(tmp_path / name)


def test_a_folder_that_is_not_there(make: Make, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        make(tmp_path / "none" / "arena")


def test_a_view_refuses_what_others_could_change(make: Make, path: Path) -> None:
    make()
    path.chmod(0o620)
    with pytest.raises(ConfigError, match=r"mode 620, allowed: .*600"):
        ArenaView(path)


@pytest.mark.parametrize("size_bytes", [HEADER_BYTES, LAYOUT.file_bytes - 1, LAYOUT.file_bytes + 1])
def test_a_view_refuses_a_file_of_another_size(size_bytes: int, make: Make, path: Path) -> None:
    make()
    os.truncate(path, size_bytes)
    with pytest.raises(ConfigError, match=f"has {size_bytes} bytes, its header says"):
        ArenaView(path)


def test_too_large_an_arena_is_refused_before_anything_is_made(
    make: Make, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arena_module, "measure_room", lambda _: Room(2**40, 1_000))
    with pytest.raises(ConfigError, match="allowed: <= 1000, which is free in the file system"):
        make()
    assert not path.exists()


def test_a_full_file_system_is_an_error_and_leaves_nothing(
    make: Make, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_fd: int, _start: int, _length: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(ConfigError, match=f"{LAYOUT.file_bytes} bytes: No space left"):
        make()
    assert not path.exists()


def test_no_such_epoch(make: Make) -> None:
    with pytest.raises(ConfigError, match="epoch -1, allowed"):
        make(epoch=-1)


class SlotMachine(RuleBasedStateMachine):
    """Slots taken and freed in any order: none is had twice, none is lost, each rise is a free."""

    SLOTS = 12

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        path = Path(self.folder.name) / "arena"
        self.arena = Arena(path, ArenaLayout(self.SLOTS, 100), 9)
        self.view = ArenaView(path)
        self.held: list[int] = []
        self.generations = [self.view.generation(slot) for slot in range(self.SLOTS)]

    def teardown(self) -> None:
        self.arena.close()
        self.folder.cleanup()

    @rule(count=st.integers(0, 15))
    def take(self, count: int) -> None:
        free = self.SLOTS - len(self.held)
        slots = self.arena.take(count)
        assert len(slots) == min(count, free)
        assert not set(slots) & set(self.held)
        self.held += slots

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        some = data.draw(st.lists(st.sampled_from(self.held), unique=True))
        self.arena.free(some)
        self.held = [slot for slot in self.held if slot not in some]
        for slot in some:
            self.generations[slot] += 1

    @rule(slot=st.integers(-2, 14))
    def free_what_is_not_held(self, slot: int) -> None:
        if slot not in self.held:
            with pytest.raises(StoreError, match="not taken"):
                self.arena.free([*self.held[:1], slot])

    @invariant()
    def every_slot_is_somewhere(self) -> None:
        assert len(self.held) == len(set(self.held))
        assert self.arena.free_slots == self.SLOTS - len(self.held)

    @invariant()
    def generations_rise_by_one_a_free(self) -> None:
        assert [self.view.generation(slot) for slot in range(self.SLOTS)] == self.generations


TestSlotMachine = SlotMachine.TestCase
TestSlotMachine.settings = settings(max_examples=50, deadline=None)
