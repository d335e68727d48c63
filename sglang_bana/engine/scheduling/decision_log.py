"""The decisions of one engine as they were made, one JSON line each, up to a bound."""

from __future__ import annotations

import logging
from pathlib import Path

from bana.slo.decisions import LogLine, encode_line

logger = logging.getLogger(__name__)


class DecisionLog:
    """A file that ends at `max_bytes`, after a whole line; the scheduler's thread writes it.

    A disk that refuses ends the log, never the engine.
    """

    def __init__(self, path: Path, max_bytes: int, header: LogLine) -> None:
        self._left_bytes = max_bytes
        self._path = path
        # Unbuffered: a killed engine leaves every decision but the last.
        self._file = path.open("wb", buffering=0)
        self.write(header)

    def write(self, line: LogLine) -> None:
        """Append one line; nothing once the log has ended."""
        if self._file.closed:
            return
        text = encode_line(line) + b"\n"
        if len(text) > self._left_bytes:
            self._end(f"it has reached its bound; {self._path} holds what came before")
            return
        self._left_bytes -= len(text)
        try:
            if self._file.write(text) != len(text):
                self._end(f"{self._path} took a part of a line only; free its disk")
        except OSError as error:
            self._end(f"{self._path} cannot be written: {error}")

    def close(self) -> None:
        """Nothing is written any more."""
        self._file.close()

    def _end(self, why: str) -> None:
        logger.warning("bana: the decision log ends: %s", why)
        self.close()
