"""What an engine says of its store: whether it has one, and what it gave."""

from __future__ import annotations

import dataclasses

from bana.slo.restore import RestoreReason
from bana.slo.wire import LinkReport
from sglang_bana.engine.linker.restoring import Restorer


def report_store(restorer: Restorer | None) -> LinkReport | None:
    """The numbers up to now, None where there is no store; any thread may ask."""
    if restorer is None:
        return None
    linker = restorer.linker
    return LinkReport(
        state=str(linker.store.state),
        reason=linker.store.reason,
        is_resting=linker.is_resting,
        held=len(restorer.holds),
        wants=len(linker.wants),
        counts=dataclasses.asdict(linker.counts) | count_reasons(restorer),
        client=dict(linker.store.counts),
        restored_pages=restorer.report_pages(),
        tokens=restorer.sources.report(),
        token_bytes=linker.page_size.size_bytes / linker.page_size.tokens * linker.ranks,
        namespace=linker.digest.hex(),
        page_tokens=linker.page_size.tokens,
        digests=tuple(digest.hex() for digest in linker.list_digests()),
    )


def count_reasons(restorer: Restorer) -> dict[str, int]:
    """How many holds ended for each reason."""
    return {f"hold_{reason}": restorer.desk.reasons[reason] for reason in RestoreReason}
