"""Several processes on one folder, and processes that are killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest

from bana.radix_global.keys import KEY_BYTES
from bana.radix_global.stores.store import ReadOutcome

PAGE_BYTES = 200_000
COMMON = """
import sys
from pathlib import Path
from random import Random, SystemRandom
from bana.radix_global.stores.directory import DirectoryStore
from bana.radix_global.stores.options import DirectoryOptions
from bana.radix_global.stores.store import PageOrigin, ReadOutcome, RefreshOutcome, WriteOutcome

def key(number): return number.to_bytes(16, "big")
def origin(number): return PageOrigin(key(number + 1), number)
"""
WRITE_UNTIL_KILLED = (
    COMMON
    + """
options = DirectoryOptions(capacity_bytes=2**30, segment_bytes=2**21)
store = DirectoryStore(Path(sys.argv[1]), options, SystemRandom())
for number in range(int(sys.argv[2]), 5_000):
    write = store.put(key(number), Random(number).randbytes(200_000), origin(number))
    assert write.outcome is WriteOutcome.WRITTEN and not write.lost
    print(number, flush=True)
"""
)
WRITE_AND_READ = (
    COMMON
    + """
import time
from contextlib import suppress
folder, me, other = Path(sys.argv[1]), int(sys.argv[2]), 1 - int(sys.argv[2])
options = DirectoryOptions(
    capacity_bytes=2**18, segment_bytes=2**13, writers=2, scan_pages=50, max_open_segments=4
)
store = DirectoryStore(folder, options, SystemRandom())
rng = Random(me)

def page(number): return Random(number).randbytes(100 + number % 900)
def read(number):
    target = bytearray(len(page(number)))
    outcome = store.read(key(number), memoryview(target))
    assert outcome not in (ReadOutcome.FAILED, ReadOutcome.SHORT, ReadOutcome.CORRUPT), outcome
    assert outcome is not ReadOutcome.READ or target == page(number), "a wrong page"
    return outcome is ReadOutcome.READ

def size(folder):
    sizes = []
    for path in folder.iterdir():
        with suppress(FileNotFoundError):  # evicted meanwhile
            sizes.append(path.stat().st_size)
    return sum(sizes)

# Numbers by their remainder: 0 only process 0 writes, 1 only process 1, 2 both.
foreign_reads, rounds, end_s = 0, 0, time.monotonic() + 60
while (rounds < 400 or foreign_reads < 50) and time.monotonic() < end_s:
    rounds += 1
    for _ in range(5):
        number = rng.randrange(600) * 3 + rng.choice([me, 2])
        assert store.put(key(number), page(number), origin(number)).outcome in (
            WriteOutcome.WRITTEN, WriteOutcome.PRESENT
        )
    assert store.refresh().outcome is not RefreshOutcome.FAILED
    foreign_reads += sum(read(rng.randrange(600) * 3 + other) for _ in range(10))
    if rounds % 20 == 0:
        store.drop(rng.choice(store.pages()).key)
    assert size(folder) <= options.capacity_bytes
assert foreign_reads >= 50, foreign_reads
print("evicted", store.stats().counts["evicted_segments"], "foreign", foreign_reads)
store.close()
"""
)


def _start(script: str, *words: object) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", script, *map(str, words)]
    return subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
    )


@pytest.mark.timeout(180)
def test_what_was_written_outlives_a_kill(folder: Path, open_store: Any, recover: Any) -> None:
    """Three processes, each killed somewhere in its writing."""
    written: list[int] = []
    for life in range(3):
        child = _start(WRITE_UNTIL_KILLED, folder, len(written))
        assert child.stdout is not None
        assert child.stderr is not None
        wanted = 10 + 7 * life
        written += [int(child.stdout.readline()) for _ in range(wanted)]
        child.send_signal(signal.SIGKILL)
        # Lines that were read ahead are in the pipe's buffer, which `communicate` knows nothing of.
        written += [int(line) for line in child.stdout]
        assert child.stderr.read() == ""
        child.stdout.close()
        child.stderr.close()
        child.wait(timeout=60)
    store = open_store(capacity_bytes=2**30, segment_bytes=2**21, scan_pages=7)
    found = {int.from_bytes(key, "big") for key in recover(store)}
    assert found >= set(written)
    assert len(found) <= len(written) + 1  # the last was killed before it told of a page
    for number in found:
        target = bytearray(PAGE_BYTES)
        key = number.to_bytes(KEY_BYTES, "big")
        assert store.read(key, memoryview(target)) is ReadOutcome.READ
        assert target == Random(number).randbytes(PAGE_BYTES)


@pytest.mark.timeout(180)
def test_two_processes_write_read_drop_and_evict_in_one_folder(folder: Path) -> None:
    children = [_start(WRITE_AND_READ, folder, me) for me in range(2)]
    for child in children:
        out, said = child.communicate(timeout=150)
        assert (child.returncode, said) == (0, ""), said
        assert int(out.split()[1]) > 0
