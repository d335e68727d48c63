"""`python -m sglang_bana.cluster.janitor RUN`: clear up behind a launcher that was killed.

It reads JSON lines from the launcher through a pipe: the process groups and shared memory of the
run, then `{"done": true}`. When the pipe ends without that, the launcher is dead: it kills the
groups, unlinks the shared memory, and removes sockets and secrets from RUN. The kernel has killed
the children by then; what they themselves had started is what the janitor is for.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from sglang_bana.cluster.procfs import list_group, read_start_ticks, unlink_unused
from sglang_bana.cluster.run_dir import RunDir, is_live, read_state

DEADLINE_S = 5.0
MODULE = "sglang_bana.cluster.janitor"


class Note(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line to the janitor: a group that began or ended, a segment in use, or the end.

    Far shorter than the 4096 bytes that a pipe takes whole or not at all.
    """

    group: int = 0
    ticks: int = 0
    ended: int = 0
    segment: str = ""
    done: bool = False


class Janitor:
    """The launcher's end of the pipe."""

    def __init__(self, run_dir: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", MODULE, str(run_dir)],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        if self._process.stdin is not None:
            # A janitor that was stopped must not stop the launcher once the pipe is full.
            os.set_blocking(self._process.stdin.fileno(), False)

    def tell(self, note: Note) -> None:
        """Pass one line on; a janitor that is gone is no reason to stop serving."""
        pipe = self._process.stdin
        if pipe is None or pipe.closed:
            return
        with contextlib.suppress(BrokenPipeError):
            pipe.write(msgspec.json.encode(note) + b"\n")

    def dismiss(self) -> None:
        """Everything is cleared up already: end it, in any case."""
        self.tell(Note(done=True))
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        try:
            self._process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def watch(run_dir: RunDir) -> None:
    """Read notes until the pipe ends, then clear up unless told that it is done."""
    groups: dict[int, int] = {}
    segments: set[str] = set()
    for line in sys.stdin.buffer:
        note = msgspec.json.decode(line, type=Note)
        if note.done:
            return
        if note.group:
            groups[note.group] = note.ticks
        groups.pop(note.ended, None)
        if note.segment:
            segments.add(note.segment)
    _kill_groups(groups)
    unlink_unused(frozenset(segments))
    state = read_state(run_dir)
    if state is None or not is_live(state):
        run_dir.remove_leftovers()


def _kill_groups(groups: dict[int, int]) -> None:
    end_s = time.monotonic() + DEADLINE_S
    left = {g for g, ticks in groups.items() if read_start_ticks(g) in (None, ticks)}
    while left and time.monotonic() < end_s:
        for group in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
        time.sleep(0.05)
        left = {group for group in left if list_group(group)}


def main(argv: list[str]) -> int:
    """Watch over the run in the folder `argv[0]`."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    watch(RunDir(Path(argv[0])))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
