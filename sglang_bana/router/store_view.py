"""What a store's own report means for one request: the input of routing."""

from __future__ import annotations

from bana.radix_global.admin_messages import StoreReport
from bana.radix_global.pages import ARENA
from bana.slo.routing import StoreView


def view_store(report: StoreReport, prompt_tokens: int, token_bytes: float) -> StoreView:
    """The store as it is for a prompt of which it is believed to hold `prompt_tokens`.

    Nobody here knows where single pages are: `tier_share` is that of all pages.
    """
    arena_pages = sum(place.pages for place in report.places if place.place == ARENA)
    tiers = [place for place in report.places if place.place != ARENA]
    most = max((tier.pages for tier in tiers), default=0)
    busy = [tier for tier in tiers if tier.bytes_per_s > 0]
    return StoreView(
        prompt_tokens=prompt_tokens,
        tier_share=max(0.0, 1.0 - arena_pages / most) if most else 0.0,
        token_bytes=token_bytes,
        bytes_per_s=sum(tier.bytes_per_s for tier in busy),
        latency_s=min((tier.latency_s for tier in busy), default=0.0),
        backlog_bytes=sum(tier.backlog_bytes for tier in busy),
    )
