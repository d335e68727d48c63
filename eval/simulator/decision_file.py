"""Where a simulated run writes what its policies decided."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from bana.slo.decisions import Decision, LogHeader, encode_line
from bana.slo.errors import ConfigError


class DecisionFile:
    """A log: its header at once, then a line a decision, until it is closed."""

    def __init__(self, path: Path, header: LogHeader) -> None:
        try:
            self._file = path.open("wb")
        except OSError as error:
            raise ConfigError(
                f"cannot write decisions to {str(path)!r} ({error.strerror}); name another file"
            ) from error
        self._file.write(encode_line(header) + b"\n")

    def write(self, decision: Decision) -> None:
        """Add a line."""
        self._file.write(encode_line(decision) + b"\n")

    def __enter__(self) -> DecisionFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()
