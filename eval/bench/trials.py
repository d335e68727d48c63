"""What a benchmark has measured so far, on disk, so that an interruption costs one trial.

One JSON line a trial, beside the output, named by the run's key: what was taken under other
settings, another seed, source or machine is never mixed in.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import msgspec

from bana.slo.errors import ConfigError

Values = Mapping[str, float]


class Trial(msgspec.Struct, frozen=True):
    """What one measurement gave; `name` is unique in its run, `key` names the run."""

    key: str
    name: str
    values: dict[str, float]


class TrialLog:
    """The trials of one run, kept in memory and appended to `file`."""

    def __init__(self, file: BinaryIO, key: str, known: dict[str, dict[str, float]]) -> None:
        self._file = file
        self._key = key
        self._known = known

    def __len__(self) -> int:
        return len(self._known)

    def recall(self, name: str) -> Values | None:
        """What trial `name` gave, None when it has not been taken."""
        return self._known.get(name)

    def append(self, name: str, values: Values) -> None:
        """Keep a trial; it is on disk when this returns."""
        kept = dict(values)
        self._file.write(msgspec.json.encode(Trial(self._key, name, kept)) + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self._known[name] = kept

    def clear(self) -> None:
        """Forget every trial, those of other runs in the same file included."""
        self._file.truncate(0)
        self._known.clear()


def partial_path(output: Path) -> Path:
    """Where the trials of an unfinished run lie."""
    return output.with_name(output.name + ".partial.jsonl")


def trials_path(output: Path) -> Path:
    """Where the trials behind a finished report lie."""
    return output.with_name(output.name + ".trials.jsonl")


@contextlib.contextmanager
def open_trials(path: Path, key: str) -> Iterator[TrialLog]:
    """The log at `path` with the trials of `key`, locked against a second run."""
    with path.open("a+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(
                f"{path} is in use by another running benchmark; wait for it to end or write "
                "to another --json FILE"
            ) from error
        yield TrialLog(file, key, _read_trials(file, key))


def _read_trials(file: BinaryIO, key: str) -> dict[str, dict[str, float]]:
    file.seek(0)
    content = file.read()
    # A kill in the middle of a write leaves a torn last line, which would spoil the next one.
    whole = content[: content.rfind(b"\n") + 1]
    file.truncate(len(whole))
    found: dict[str, dict[str, float]] = {}
    for number, line in enumerate(whole.splitlines(), start=1):
        try:
            trial = msgspec.json.decode(line, type=Trial)
        except msgspec.MsgspecError as error:
            raise ConfigError(
                f"line {number} of {file.name} is no trial ({error}); run with --fresh to discard"
            ) from error
        if trial.key == key:
            found[trial.name] = trial.values
    return found
