"""What stops a benchmark: a run that proves nothing must not leave figures behind."""

from __future__ import annotations

from bana.slo.errors import BanaError


class BenchError(BanaError):
    """A run is invalid or could not be carried out; no report is written."""
