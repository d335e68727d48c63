"""What a running engine is, as the simulator describes engines."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from bana.eval.bench.errors import BenchError
from bana.eval.bench.trials import Values
from bana.eval.simulator.engine_spec import EngineSpec, Overtaking, TokensSeen


class RankState(msgspec.Struct, frozen=True):
    """What one scheduler says of itself."""

    effective_max_running_requests_per_dp: int


class ServerInfo(msgspec.Struct, frozen=True):
    """What of SGLang's `/server_info` matters here."""

    device: str
    chunked_prefill_size: int
    page_size: int
    max_total_num_tokens: int
    enable_mixed_chunk: bool
    disable_radix_cache: bool
    disable_overlap_schedule: bool
    internal_states: Sequence[RankState]


def list_facts(body: bytes) -> Values:
    """The facts of a `/server_info` as numbers; BenchError where one is missing or odd."""
    try:
        info = msgspec.json.decode(body, type=ServerInfo)
    except msgspec.MsgspecError as error:
        raise BenchError(
            f"/server_info of a server under test cannot be read ({error}); this benchmark knows "
            "that of SGLang 0.5.23"
        ) from error
    if info.chunked_prefill_size < 1 or len(info.internal_states) != 1:
        raise BenchError(
            f"a server under test has chunked_prefill_size={info.chunked_prefill_size} and "
            f"{len(info.internal_states)} schedulers; the simulator knows chunks of at least one "
            "token and one scheduler: leave out the flags that change this"
        )
    return {
        "kv_tokens": float(info.max_total_num_tokens),
        "page_tokens": float(info.page_size),
        "chunk_tokens": float(info.chunked_prefill_size),
        "max_running": float(info.internal_states[0].effective_max_running_requests_per_dp),
        "can_mix": float(info.enable_mixed_chunk),
        "has_prefix_cache": float(not info.disable_radix_cache),
        # Where a launch computes, the overlap schedule reads each result after the next launch.
        "is_seen_late": float(info.device == "cpu" and not info.disable_overlap_schedule),
    }


def build_engine(facts: Values, overtaking: Overtaking) -> EngineSpec:
    """The engine of these facts."""
    return EngineSpec(
        kv_tokens=int(facts["kv_tokens"]),
        page_tokens=int(facts["page_tokens"]),
        chunk_tokens=int(facts["chunk_tokens"]),
        max_running=int(facts["max_running"]),
        can_mix=bool(facts["can_mix"]),
        has_prefix_cache=bool(facts["has_prefix_cache"]),
        overtaking=overtaking,
        tokens_seen=TokensSeen.AFTER_NEXT if facts["is_seen_late"] else TokensSeen.AT_END,
    )
