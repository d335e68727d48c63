"""What a run is called."""

from __future__ import annotations

from bana.eval.report.numbers import format_rate
from bana.eval.report.records import StoredRun
from bana.eval.report.text import clean_text


def name_run(stored: StoredRun) -> str:
    """How a run is called among others."""
    origin = stored.origin
    words = (origin.side, origin.label or format_rate(stored.summary.offered_rps))
    return clean_text(" ".join(word for word in words if word), 60)
