"""When a client that is turned away should come again."""

from __future__ import annotations

import math


def retry_headers(retry_after_s: float) -> dict[str, str]:
    """Both spellings of when to come back."""
    return {
        "Retry-After": str(max(1, math.ceil(retry_after_s))),
        "retry-after-ms": str(max(1, round(retry_after_s * 1e3))),
    }
