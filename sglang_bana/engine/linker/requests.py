"""Whose KV the store is for."""

from __future__ import annotations

from typing import Any

from sglang_bana.engine.scheduling.outcomes import is_own


def is_restorable(req: Any) -> bool:
    """Whether the request's KV depends on its tokens alone, and some client waits for it."""
    carries_state = (
        req.session is not None
        or req.beam_group is not None
        or req.input_embeds is not None
        or req.positional_embed_overrides is not None
        or req.multimodal_inputs is not None
        or req.skip_radix_cache_insert
    )
    return not carries_state and not is_own(req)
