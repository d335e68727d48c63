"""How much the overhead benchmark measures at each scale."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from bana.eval.bench.harness import Scale
from bana.eval.bench.placement import plan_engine_placement

# bana's scheduler class, with every question left to SGLang.
NEUTRAL = ("scheduling.order=stock", "scheduling.governor=stock")


class OverheadSettings(msgspec.Struct, frozen=True):
    """One scale: a round is `requests` requests, `concurrency` of them out at a time.

    Both servers are started `starts` times, and each start gives the pairs named here: two
    equal servers of one start were seen to differ by some 3 % for as long as they lived.
    `policies` are settings of bana's side.
    """

    starts: int
    pairs: int
    control_pairs: int
    shared_pairs: int
    requests: int
    concurrency: int = 8
    prompt_tokens: int = 128
    output_tokens: int = 64
    model: str = "smollm2"
    policies: tuple[str, ...] = NEUTRAL
    first_token_id: int = 1_000
    last_token_id: int = 40_000
    round_timeout_s: float = 600.0
    start_timeout_s: float = 600.0


SCALES = {
    Scale.QUICK: OverheadSettings(
        starts=1,
        pairs=1,
        control_pairs=1,
        shared_pairs=1,
        requests=4,
        concurrency=4,
        output_tokens=8,
    ),
    Scale.DEFAULT: OverheadSettings(
        starts=6, pairs=2, control_pairs=1, shared_pairs=1, requests=16
    ),
    Scale.FULL: OverheadSettings(starts=12, pairs=3, control_pairs=1, shared_pairs=1, requests=32),
}


def describe_overhead_settings(scale: Scale) -> Mapping[str, object]:
    """The settings as they stand in the report."""
    described: dict[str, object] = msgspec.to_builtins(SCALES[scale])
    return described | {
        "placement": plan_engine_placement().describe(),
        "bana": "bana's scheduler, addressed through its front door",
        "stock": "SGLang's scheduler, same platform and flags, instance addressed directly",
        "order": "who starts first alternates, and so does who is loaded first",
        "cores": "both instances on the same cores, loaded in turn; the front door with the client",
        "shared_cores": "bana's front door moved onto the cores of the instance",
        "prompts": "random token ids, new in each round, the same for both sides; caches flushed",
    }
