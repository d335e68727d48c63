"""The pins of a run's store, in a small file beside its socket: what the next daemon pins again."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from bana.radix_global.crew import Crew
from bana.radix_global.daemon.pinning import MAX_PINS
from bana.radix_global.keys import KEY_BYTES
from bana.radix_global.wire_parts import Keys
from bana.slo.clock import Clock
from sglang_bana.config import write_private

MAX_KEYS_BYTES = 32 * 2**20
MAX_FILE_BYTES = 2 * MAX_KEYS_BYTES
IDLE_S = 60.0


class PinList(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the file holds: the keys of each prefix, end to end, in base64."""

    version: Literal[1]
    pins: Annotated[tuple[Keys, ...], msgspec.Meta(max_length=MAX_PINS)]


class PinFile:
    """See PinRecord; a thread writes, so that a daemon waits for no storage.

    What the file says is not trusted: one that is too large, not this user's or not as written is
    set aside, which `say` is told. No pins, no file.
    """

    def __init__(self, path: Path, clock: Clock, say: Callable[[str], None]) -> None:
        self._path = path
        self._say = say
        self._crew = Crew(clock)
        self._bell = self._crew.hang_bell()
        self._unsaved: PinList | None = None
        self._crew.hire("bana-pins", self._work)
        self._crew.start()

    def load(self) -> tuple[bytes, ...]:
        """See PinRecord."""
        try:
            return _read(self._path)
        except FileNotFoundError:
            return ()
        except (OSError, ValueError) as error:
            aside = self._path.with_name(f"{self._path.name}.bad")
            self._say(f"{self._path}: {error}; no pins are made again, it is set aside as {aside}")
            with suppress(OSError):
                self._path.replace(aside)
            return ()

    def save(self, pins: Sequence[bytes]) -> None:
        """See PinRecord; the newest counts."""
        with self._crew.lock:
            self._unsaved = PinList(1, tuple(pins))
            self._bell.notify()

    def close(self, timeout_s: float) -> bool:
        """Write what is to be written; False where the storage keeps the thread."""
        with self._crew.lock:
            self._crew.dismiss()
        return self._crew.join(timeout_s) == 0

    def _work(self) -> None:
        """What the thread does for its life, and once more at its end."""
        while True:
            with self._crew.lock:
                if self._unsaved is None:
                    self._crew.rest(self._bell, IDLE_S)
                pins, self._unsaved = self._unsaved, None
            if pins is not None:
                self._write(pins)
            elif self._crew.is_dismissed:
                return

    def _write(self, pins: PinList) -> None:
        try:
            if sum(map(len, pins.pins)) > MAX_KEYS_BYTES:
                raise OSError(errno.EFBIG, f"more than {MAX_KEYS_BYTES} bytes of keys")
            if pins.pins:
                write_private(self._path, pins)
            else:
                self._path.unlink(missing_ok=True)
        except OSError as error:
            self._say(
                f"{self._path}: {error.strerror}; what is pinned now does not outlive the store"
            )


def _read(path: Path) -> tuple[bytes, ...]:
    """The pins in the file; ValueError where it is not what was written."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise ValueError("no file of this user's")
        if status.st_size > MAX_FILE_BYTES:
            raise ValueError(f"{status.st_size} bytes, allowed: {MAX_FILE_BYTES}")
        # msgspec's errors are ValueErrors.
        pins = msgspec.json.decode(file.read(MAX_FILE_BYTES), type=PinList).pins
    if any(not keys or len(keys) % KEY_BYTES for keys in pins):
        raise ValueError(f"a pin that is no row of keys of {KEY_BYTES} bytes")
    return pins
