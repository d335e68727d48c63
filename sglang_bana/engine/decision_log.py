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
        self._file = path.open("wb")
        self.write(header)

    def write(self, line: LogLine) -> None:
        """Append one line; nothing once the log has ended."""
        if self._file.closed:
            return
        text = encode_line(line) + b"\n"
        if len(text) > self._left_bytes:
            self._end(f"it has reached its bound; {self._path} holds what came before")
            return
        try:
            self._file.write(text)
            self._left_bytes -= len(text)
        except OSError as error:
            self._end(f"{self._path} cannot be written: {error}")

    def flush(self) -> None:
        """Let readers see every line so far."""
        if not self._file.closed:
            try:
                self._file.flush()
            except OSError as error:
                self._end(f"{self._path} cannot be written: {error}")

    def _end(self, why: str) -> None:
        logger.warning("bana: the decision log ends: %s", why)
        try:
            self._file.close()
        except OSError:
            logger.warning("bana: %s may lack its last lines", self._path)
