"""Azure's LLM inference traces (AzurePublicDataset): times and lengths as CSV."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from bana.eval.workload.trace_lines import Line, read_lines
from bana.eval.workload.trace_rows import TraceRow
from bana.slo.errors import ConfigError

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
MAX_TOKENS = 10_000_000


def read_rows(path: Path) -> Iterator[TraceRow]:
    """Rows in order; ConfigError names the line that is malformed or out of order."""
    lines = read_lines(path)
    header = next(lines, None)
    if header is None:
        raise ConfigError(f"trace {str(path)!r} is empty; expected a CSV with {', '.join(COLUMNS)}")
    names = _split(header)
    for column in COLUMNS:
        if column not in names:
            raise header.refuse(f"column {column!r} is missing (found: {', '.join(names)[:80]!r})")
    first: datetime | None = None
    last_s = 0.0
    for line in lines:
        cells = _read_cells(line, names)
        moment = _read_moment(cells[COLUMNS[0]], line)
        first = first or moment
        time_s = (moment - first).total_seconds()
        if time_s < last_s:
            raise line.refuse("earlier than the line before; sort the trace by TIMESTAMP")
        last_s = time_s
        lengths = [_read_tokens(column, cells[column], line) for column in COLUMNS[1:]]
        yield TraceRow(time_s, input_tokens=lengths[0], output_tokens=lengths[1])


def _split(line: Line) -> list[str]:
    try:
        return [cell.strip() for cell in next(csv.reader([line.text], strict=True), [])]
    except csv.Error as error:
        raise line.refuse(f"no CSV: {error}") from error


def _read_cells(line: Line, names: list[str]) -> Mapping[str, str]:
    cells = _split(line)
    if len(cells) != len(names):
        raise line.refuse(f"{len(cells)} cells, expected {len(names)} as in the header")
    return dict(zip(names, cells, strict=True))


def _read_moment(cell: str, line: Line) -> datetime:
    try:
        moment = datetime.fromisoformat(cell)
    except ValueError as error:
        example = "2023-11-16 18:15:46.680"
        raise line.refuse(f"TIMESTAMP {cell[:40]!r} is no date; expected e.g. {example}") from error
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _read_tokens(column: str, cell: str, line: Line) -> int:
    # Python alone reads `1_000` and the digits of other scripts as numbers.
    is_number = cell.isascii() and cell.isdecimal() and len(cell) <= len(str(MAX_TOKENS))
    tokens = int(cell) if is_number else 0
    if not 1 <= tokens <= MAX_TOKENS:
        allowed = f"expected a whole number from 1 to {MAX_TOKENS}"
        raise line.refuse(f"{column} {cell[:40]!r}: {allowed}")
    return tokens
