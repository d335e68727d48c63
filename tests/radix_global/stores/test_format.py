"""The file format, read and written here a second time from the README's byte table."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import xxhash

from bana.radix_global.keys import KEY_BYTES
from bana.radix_global.stores.directory import DirectoryStore
from bana.radix_global.stores.store import HeldPage, PageOrigin, ReadOutcome, WriteOutcome

Recover = Callable[[DirectoryStore], set[bytes]]

MAGIC = b"\x89BANA\r\n\x1a"
SEGMENT = "seg-000000000001-" + "0" * 24 + ".pages"
KEYS = [bytes([n]) * KEY_BYTES for n in range(4)]
PAGES = [bytes([n + 100]) * (20 + n) for n in range(4)]


def _origin(key: bytes) -> PageOrigin:
    """The first of KEYS is a first page."""
    return PageOrigin(bytes([key[0] + 50]) * KEY_BYTES * (key != KEYS[0]), 2**32 - 1 - key[0])


def _entry(key: bytes, page: bytes, **fields: Any) -> bytes:
    values = {"magic": MAGIC, "version": 1, "kind": 1, "length": len(page), **fields}
    head = struct.pack(
        "<8sHHI16s16sQ16s48x",
        values["magic"],
        values["version"],
        values["kind"],
        values.get("namespace", _origin(key).namespace),
        values.get("parent", _origin(key).parent or key),
        key,
        values["length"],
        values.get("check", xxhash.xxh3_128_digest(page)),
    )
    return head + xxhash.xxh3_64_digest(head) + page


def _drop(key: bytes) -> bytes:
    return _entry(key, b"", kind=2, namespace=0, parent=bytes(16), check=bytes(16))


def _write(folder: Path, *entries: bytes, name: str = SEGMENT) -> Path:
    folder.mkdir(mode=0o700, exist_ok=True)
    (folder / name).write_bytes(b"".join(entries))
    return folder / name


def _read(store: DirectoryStore, number: int) -> ReadOutcome:
    """The outcome, and that a page that was read is the right one."""
    target = bytearray(len(PAGES[number]))
    outcome = store.read(KEYS[number], memoryview(target))
    assert outcome is not ReadOutcome.READ or target == PAGES[number]
    return outcome


def _outcomes(store: DirectoryStore) -> list[ReadOutcome]:
    return [_read(store, number) for number in range(4)]


def test_a_store_writes_the_documented_bytes(folder: Path, open_store: Any) -> None:
    store = open_store()
    store.put(KEYS[0], PAGES[0], _origin(KEYS[0]))
    store.put(KEYS[1], PAGES[1], _origin(KEYS[1]))
    store.drop(KEYS[0])
    (segment,) = folder.iterdir()
    expected = _entry(KEYS[0], PAGES[0]) + _entry(KEYS[1], PAGES[1]) + _drop(KEYS[0])
    assert segment.read_bytes() == expected
    assert segment.stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_store_reads_the_documented_bytes(folder: Path, open_store: Any, recover: Any) -> None:
    _write(folder, *map(_entry, KEYS, PAGES), _drop(KEYS[2]))
    store = open_store()
    assert _read(store, 0) is ReadOutcome.MISSING
    assert recover(store) == {KEYS[0], KEYS[1], KEYS[3]}
    assert _outcomes(store) == [ReadOutcome.READ] * 2 + [ReadOutcome.MISSING, ReadOutcome.READ]
    assert store.pages() == [
        HeldPage(KEYS[n], _origin(KEYS[n]), len(PAGES[n])) for n in range(4) if n != 2
    ]


@pytest.mark.parametrize("flip", [0x01, 0xFF])
def test_no_byte_can_be_changed_unnoticed(
    folder: Path, open_store: Any, recover: Any, flip: int
) -> None:
    """Every byte of a segment in turn, found at opening or, in a payload, on reading.

    Entries before the changed one are untouched; those after it are read too if its header is.
    """
    entries = list(map(_entry, KEYS, PAGES))
    raw = b"".join(entries)
    starts = [sum(map(len, entries[:number])) for number in range(4)]
    for at in range(len(raw)):
        hit = max(number for number in range(4) if starts[number] <= at)
        in_header = at < starts[hit] + 128
        _write(folder, raw[:at], bytes([raw[at] ^ flip]), raw[at + 1 :])
        store = open_store()
        recover(store)
        after = ReadOutcome.MISSING if in_header else ReadOutcome.READ
        damaged = ReadOutcome.MISSING if in_header else ReadOutcome.CORRUPT
        expected = [ReadOutcome.READ] * hit + [damaged] + [after] * (3 - hit)
        assert _outcomes(store) == expected, at
        assert not store.holds(KEYS[hit])
        store.close()


def test_no_byte_can_be_changed_unnoticed_behind_an_open_store(
    folder: Path, open_store: Any, recover: Any
) -> None:
    entries = list(map(_entry, KEYS, PAGES))
    raw = b"".join(entries)
    segment = _write(folder, raw)
    for at in range(len(raw)):
        hit = max(number for number in range(4) if sum(map(len, entries[:number])) <= at)
        store = open_store()
        recover(store)
        segment.write_bytes(raw[:at] + bytes([raw[at] ^ 0x10]) + raw[at + 1 :])
        outcomes = _outcomes(store)
        assert outcomes.pop(hit) is ReadOutcome.CORRUPT, at
        assert outcomes == [ReadOutcome.READ] * 3
        assert store.stats().counts["corrupt_pages"] == 1
        store.close()
        segment.write_bytes(raw)


def test_what_is_cut_off_at_any_byte_was_never_there(
    folder: Path, open_store: Any, recover: Any
) -> None:
    entries = list(map(_entry, KEYS, PAGES))
    raw = b"".join(entries)
    ends = [sum(map(len, entries[: number + 1])) for number in range(4)]
    for cut in range(len(raw)):
        _write(folder, raw[:cut])
        store = open_store()
        whole = [end <= cut for end in ends]
        assert recover(store) == {key for key, there in zip(KEYS, whole, strict=True) if there}
        expected = [ReadOutcome.READ if there else ReadOutcome.MISSING for there in whole]
        assert _outcomes(store) == expected
        store.close()


def test_a_segment_that_shrinks_behind_an_open_store_is_short(
    folder: Path, open_store: Any, recover: Any
) -> None:
    segment = _write(folder, *map(_entry, KEYS, PAGES))
    store = open_store()
    recover(store)
    with segment.open("r+b") as file:
        file.truncate(segment.stat().st_size - 1)
    assert _outcomes(store) == [ReadOutcome.READ] * 3 + [ReadOutcome.SHORT]
    assert not store.holds(KEYS[3])


def test_one_page_under_the_key_of_another_is_corrupt(
    folder: Path, open_store: Any, recover: Any
) -> None:
    """Both entries are sound: only the key in the header tells them apart."""
    segment = _write(folder, _entry(KEYS[0], PAGES[0]), _entry(KEYS[1], PAGES[0]))
    store = open_store()
    recover(store)
    segment.write_bytes(_entry(KEYS[1], PAGES[0]) + _entry(KEYS[0], PAGES[0]))
    assert _read(store, 0) is ReadOutcome.CORRUPT


@pytest.mark.parametrize(
    ("bad", "counted"),
    [
        (_entry(KEYS[1], PAGES[1], length=2**63), {}),
        (_entry(KEYS[1], PAGES[1], length=2**64 - 1), {}),
        (_entry(KEYS[1], PAGES[1], length=10**6), {}),
        (_entry(KEYS[1], b""), {"damaged_segments": 1}),
        (_entry(KEYS[1], PAGES[1], kind=2), {"damaged_segments": 1}),
        (_entry(KEYS[1], PAGES[1], kind=3), {"damaged_segments": 1}),
        (_entry(KEYS[1], PAGES[1], magic=b"PK\x03\x04PK\x03\x04"), {"damaged_segments": 1}),
        (_entry(KEYS[1], PAGES[1], version=0), {"wrong_version_segments": 1}),
        (_entry(KEYS[1], PAGES[1], version=2), {"wrong_version_segments": 1}),
        (bytes(128) + PAGES[1], {}),
        (PAGES[1] * 9, {"damaged_segments": 1}),
    ],
)
def test_a_segment_is_believed_up_to_its_first_bad_entry(
    folder: Path, open_store: Any, recover: Any, bad: bytes, counted: dict[str, int]
) -> None:
    _write(folder, _entry(KEYS[0], PAGES[0]), bad, _entry(KEYS[2], PAGES[2]))
    store = open_store()
    assert recover(store) == {KEYS[0]}
    assert recover(store) == set()
    assert store.stats().counts == counted
    assert store.put(KEYS[1], PAGES[1], _origin(KEYS[1])).outcome is WriteOutcome.WRITTEN
    assert _outcomes(store)[:2] == [ReadOutcome.READ] * 2


def test_a_length_into_the_next_entry_makes_no_page(
    folder: Path, open_store: Any, recover: Any
) -> None:
    """Overlapping entries: the first one claims the second one's bytes as its own payload."""
    second = _entry(KEYS[1], PAGES[1])
    length = len(PAGES[0]) + len(second)
    greedy = _entry(KEYS[0], PAGES[0], length=length)
    _write(folder, greedy, second, _entry(KEYS[2], PAGES[2]))
    store = open_store()
    assert recover(store) == {KEYS[0], KEYS[2]}
    assert _read(store, 0) is ReadOutcome.WRONG_LENGTH
    assert store.read(KEYS[0], memoryview(bytearray(length))) is ReadOutcome.CORRUPT
    assert _read(store, 2) is ReadOutcome.READ


def test_a_page_below_itself_is_a_first_page(folder: Path, open_store: Any, recover: Any) -> None:
    store = open_store()
    store.put(KEYS[0], PAGES[0], PageOrigin(KEYS[0], 7))
    recover(again := open_store())
    assert again.pages() == [HeldPage(KEYS[0], PageOrigin(b"", 7), len(PAGES[0]))]


def test_a_header_inside_a_payload_is_payload(folder: Path, open_store: Any, recover: Any) -> None:
    forged = _entry(KEYS[1], PAGES[1])
    _write(folder, _entry(KEYS[0], forged))
    store = open_store()
    assert recover(store) == {KEYS[0]}


def test_the_newest_copy_counts_and_marks_of_older_segments_do_not(
    folder: Path, open_store: Any, recover: Any
) -> None:
    """Names order segments: 2 drops what 1 holds, 3 holds it again, and its copy of 1 is bad."""
    names = [SEGMENT.replace("0001-", f"000{n}-") for n in (1, 2, 3)]
    torn = _entry(KEYS[1], PAGES[1])[:-1] + b"?"
    _write(folder, _entry(KEYS[0], PAGES[0]), torn, _entry(KEYS[2], PAGES[2]), name=names[0])
    _write(folder, _drop(KEYS[0]), _drop(KEYS[2]), _drop(KEYS[3]), name=names[1])
    _write(folder, _entry(KEYS[0], PAGES[0]), _entry(KEYS[1], PAGES[1]), name=names[2])
    store = open_store(scan_pages=1)
    assert recover(store) == {KEYS[0], KEYS[1]}
    assert _outcomes(store) == [ReadOutcome.READ] * 2 + [ReadOutcome.MISSING] * 2
