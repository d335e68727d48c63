"""A run without the credentials that came with it."""

from __future__ import annotations

import msgspec

from bana.eval.report.records import StoredRun
from bana.eval.report.text import redact_settings, redact_url


def hide_secrets(stored: StoredRun) -> StoredRun:
    """The run with target, workload and settings as they may be written down."""
    replace = msgspec.structs.replace
    summary, origin, about = stored.summary, stored.origin, stored.record.about
    target, workload = redact_url(summary.target), redact_settings(summary.workload)
    return StoredRun(
        record=replace(stored.record, about=replace(about, target=target, workload=workload)),
        summary=replace(summary, target=target, workload=workload),
        origin=replace(origin, settings=redact_settings(origin.settings)),
    )
