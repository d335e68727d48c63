"""What tests of hand-offs ask a front door on stubs, and what those were told."""

from __future__ import annotations

from typing import Any

from bana.slo.wire import LinkReport, LoadReport

PROMPT = "one long prompt that is worth it"
BODY = {"text": PROMPT, "sampling_params": {"max_new_tokens": 8}}
STREAM = {**BODY, "stream": True}
SPLIT = {"d": "decode", "p": "prefill"}
TOLD = "x-bana-prefill-instance"


def part_of(seen: Any) -> str:
    """Which part of a hand-off an instance was told to do, wherever it was told."""
    if "x-bana-handoff" in seen.headers:
        return str(seen.headers["x-bana-handoff"])
    params = seen.body.get("sampling_params", seen.body).get("custom_params", {})
    return str(params.get("bana_handoff"))


def report_link(name: str) -> LoadReport:
    """What an instance reports that has a store and has not passed yet: it has seen nobody."""
    link = LinkReport("attached", "", False, 0, 0, {}, {}, {}, {}, namespace="shared")
    return LoadReport(name, 1, 1, 0.0, -1.0, 0, 0, 0, 0, 0, 0, 0, 0, store=link)


async def ask_handoff(front: Any) -> Any:
    """What the front door says of its hand-offs."""
    return (await front.status())["handoff"]


async def wait_outcome(front: Any, **wanted: int) -> None:
    """Until the copies have ended so."""

    async def is_told() -> bool:
        return bool((await ask_handoff(front))["outcomes"] == wanted)

    await front.wait_until(is_told)


async def is_empty(front: Any) -> bool:
    """Whether nothing is under way any more, in any book."""
    beliefs = {
        (i["prefill_tokens"], i["decode_requests"], i["waiting_requests"])
        for i in (await front.status())["instances"]
    }
    is_quiet = not any(s.server.log.generating for s in front.stubs)
    return is_quiet and not len(front.running.door.flights) and beliefs == {(0, 0, 0)}
