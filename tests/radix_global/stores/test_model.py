"""A directory store beside a dict, with crashes that tear or spoil any byte, at any step."""

from __future__ import annotations

import shutil
import struct
import tempfile
from enum import Enum
from pathlib import Path
from random import Random

import xxhash
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from bana.radix_global.keys import KEY_BYTES
from bana.radix_global.stores.directory import DirectoryStore
from bana.radix_global.stores.options import DirectoryOptions
from bana.radix_global.stores.store import (
    HeldPage,
    PageOrigin,
    ReadOutcome,
    Refresh,
    RefreshOutcome,
    WriteOutcome,
)

OPTIONS = DirectoryOptions(
    capacity_bytes=4_096, segment_bytes=1_024, scan_pages=3, max_open_segments=2
)
NUMBERS = st.integers(0, 25)


class Harm(Enum):
    """What a crash does to one segment, at one byte."""

    NONE = "none"
    CUT = "cut"
    FLIP = "flip"
    HOLE = "hole"  # what stands behind was not written, though the file is as long


def _key(number: int) -> bytes:
    return number.to_bytes(KEY_BYTES, "big")


def _origin(number: int) -> PageOrigin:
    return PageOrigin(_key(number // 2) if number > 1 else b"", number)


def _page(number: int) -> bytes:
    return Random(number).randbytes(1 + number * 37 % 200)


def _find_pages(folder: Path) -> dict[bytes, bool]:
    """Naively, from the README: every key that a chain of entries reaches, and if it is sound."""
    found: dict[bytes, bool] = {}
    for path in sorted(folder.iterdir()):
        raw, at = path.read_bytes(), 0
        while at + 128 <= len(raw):
            head, own_check = raw[at : at + 120], raw[at + 120 : at + 128]
            _, version, kind, _, _, key, length, check = struct.unpack("<8sHHI16s16sQ16s48x", head)
            page = raw[at + 128 : at + 128 + length]
            is_sound = xxhash.xxh3_64_digest(head) == own_check and version == 1
            if not is_sound or len(page) < length:
                break
            if kind == 2:
                found.pop(key, None)
            else:
                found[key] = xxhash.xxh3_128_digest(page) == check
            at += 128 + length
    return found


def _harm(path: Path, harm: Harm, at: int) -> None:
    raw = path.read_bytes()
    changed = {
        Harm.NONE: raw,
        Harm.CUT: raw[:at],
        Harm.FLIP: raw[:at] + bytes([raw[at] ^ 0x40]) + raw[at + 1 :],
        Harm.HOLE: raw[:at] + bytes(len(raw) - at),
    }
    path.write_bytes(changed[harm])


class DirectoryBesideDict(RuleBasedStateMachine):
    """`held` is the dict: which pages there are, and whether their bytes are still sound. `gone`
    are those that reads found to be spoilt since the last refresh.
    """

    def __init__(self) -> None:
        super().__init__()
        self._place = tempfile.TemporaryDirectory()
        self._lives = 0
        self._folder = Path(self._place.name) / "0"
        self._held: dict[bytes, bool] = {}
        self._gone: dict[bytes, None] = {}
        self._store = self._open()

    def teardown(self) -> None:
        self._store.close()
        self._place.cleanup()

    @rule(number=NUMBERS)
    def put(self, number: int) -> None:
        write = self._store.put(_key(number), _page(number), _origin(number))
        is_there = _key(number) in self._held
        assert write.outcome is (WriteOutcome.PRESENT if is_there else WriteOutcome.WRITTEN)
        self._held.setdefault(_key(number), True)
        self._lose(write.lost)

    @rule(number=NUMBERS)
    def read(self, number: int) -> None:
        target = bytearray(len(_page(number)))
        outcome = self._store.read(_key(number), memoryview(target))
        is_sound = self._held.get(_key(number))
        expected = {
            None: ReadOutcome.MISSING,
            True: ReadOutcome.READ,
            False: ReadOutcome.CORRUPT,
        }
        assert outcome is expected[is_sound]
        if outcome is ReadOutcome.READ:
            assert target == _page(number)
        elif self._held.pop(_key(number), None) is not None:
            self._gone[_key(number)] = None

    @rule(number=NUMBERS)
    def drop(self, number: int) -> None:
        write = self._store.drop(_key(number))
        is_there = _key(number) in self._held
        assert write.outcome is (WriteOutcome.DROPPED if is_there else WriteOutcome.MISSING)
        self._held.pop(_key(number), None)
        self._lose(write.lost)

    @rule()
    def refresh(self) -> None:
        lost = tuple(key for key in self._gone if key not in self._held)
        assert self._store.refresh() == Refresh(RefreshOutcome.WHOLE, lost=lost)
        self._gone.clear()

    @rule()
    def close_and_open(self) -> None:
        self._store.close()
        # A page that was found corrupt is still in its segment, or an older copy of it is.
        self._held = _find_pages(self._folder)
        self._store = self._open()

    @rule(harm=st.sampled_from(Harm), place=st.integers(0, 10**6), recent=st.booleans())
    def crash(self, harm: Harm, place: int, recent: bool) -> None:
        """The process ends without a word; what it left is copied, and harmed at one byte."""
        killed, left = self._store, self._folder
        self._lives += 1
        self._folder = left.parent / str(self._lives)
        shutil.copytree(left, self._folder)
        paths = sorted(path for path in self._folder.iterdir() if path.stat().st_size)
        if paths:
            path = paths[-1 if recent else place % len(paths)]
            _harm(path, harm, place % path.stat().st_size)
        self._held = _find_pages(self._folder)
        self._store = self._open()
        killed.close()

    @invariant()
    def holds_what_the_dict_holds(self) -> None:
        numbers = [int.from_bytes(key, "big") for key in self._held]
        pages = {HeldPage(_key(n), _origin(n), len(_page(n))) for n in numbers}
        assert set(self._store.pages()) == pages
        assert self._store.stats().pages == len(self._held)

    @invariant()
    def keeps_its_capacity(self) -> None:
        held_bytes = sum(path.stat().st_size for path in self._folder.iterdir())
        assert held_bytes <= OPTIONS.capacity_bytes

    def _lose(self, keys: tuple[bytes, ...]) -> None:
        for key in keys:
            del self._held[key]

    def _open(self) -> DirectoryStore:
        self._gone.clear()
        store = DirectoryStore(self._folder, OPTIONS, Random(self._lives))
        found: dict[bytes, HeldPage] = {}
        outcome = RefreshOutcome.PARTIAL
        while outcome is RefreshOutcome.PARTIAL:
            refresh = store.refresh()
            found |= {page.key: page for page in refresh.found}
            for key in refresh.lost:
                del found[key]
            outcome = refresh.outcome
        assert outcome is RefreshOutcome.WHOLE
        assert set(found.values()) == set(store.pages())
        return store


TestDirectoryBesideDict = DirectoryBesideDict.TestCase
TestDirectoryBesideDict.settings = settings(deadline=None, max_examples=60, stateful_step_count=40)
