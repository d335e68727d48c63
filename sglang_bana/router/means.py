"""What carries requests to instances, and the books that are kept of it."""

from __future__ import annotations

import dataclasses

from bana.slo.load import LoadLedger
from sglang_bana.router.abort import AbortQueue
from sglang_bana.router.metrics import RouterMetrics
from sglang_bana.router.places import Places
from sglang_bana.router.upstream import Upstream


@dataclasses.dataclass(frozen=True, slots=True)
class Means:
    """Shared by all that sends requests: whoever sends one keeps all of these true."""

    places: Places
    ledger: LoadLedger
    upstream: Upstream
    aborts: AbortQueue
    metrics: RouterMetrics
