"""Tells clients which place each cached token of their prompt came from."""

from __future__ import annotations

from typing import Any

from sglang.srt.managers.scheduler_components.output_streamer import SchedulerOutputStreamer

from sglang_bana.engine.stay import stay_of

STORE = "bana"


class StoreStreamer(SchedulerOutputStreamer):
    """SGLang's streamer, which says more of restored prompts, and nothing of lost steps."""

    def stream_output(self, reqs: list[Any], return_logprob: Any, skip_req: Any = None) -> None:
        # Whose KV did not land is computed again, and has nothing to say until then.
        shown = [req for req in reqs if not stay_of(req).is_lost]
        super().stream_output(shown, return_logprob, skip_req)

    def get_cached_tokens_details(self, req: Any) -> dict[str, Any] | None:
        details = super().get_cached_tokens_details(req)
        restored = stay_of(req).restored
        if details is None or not any(restored):
            return details
        tiers = {f"tier_{place}": n for place, n in enumerate(restored) if place and n}
        return {**details, **tiers, "storage": sum(restored[1:]), "storage_backend": STORE}
