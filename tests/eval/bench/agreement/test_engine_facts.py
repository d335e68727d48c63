"""An engine as it describes itself becomes the engine that is simulated."""

from __future__ import annotations

import json

import pytest

from bana.eval.bench.agreement.engine_facts import build_engine, list_facts
from bana.eval.bench.errors import BenchError
from bana.eval.simulator.engine_spec import EngineSpec, Overtaking, TokensSeen

INFO = {
    "device": "cpu",
    "chunked_prefill_size": 4096,
    "page_size": 16,
    "max_total_num_tokens": 16_384,
    "enable_mixed_chunk": True,
    "disable_radix_cache": True,
    "disable_overlap_schedule": False,
    "internal_states": [{"effective_max_running_requests_per_dp": 48, "other": 1}],
    "unknown": {"to": "us"},
}


def read(**changes: object) -> EngineSpec:
    return build_engine(list_facts(json.dumps({**INFO, **changes}).encode()), Overtaking.NEVER)


def test_flags_and_sizes_are_those_of_the_engine() -> None:
    assert read() == EngineSpec(
        kv_tokens=16_384,
        page_tokens=16,
        chunk_tokens=4096,
        max_running=48,
        can_mix=True,
        has_prefix_cache=False,
        overtaking=Overtaking.NEVER,
        tokens_seen=TokensSeen.AFTER_NEXT,
    )
    assert read(disable_radix_cache=False, enable_mixed_chunk=False).has_prefix_cache


@pytest.mark.parametrize(
    "changes", [{"disable_overlap_schedule": True}, {"device": "cuda"}], ids=["normal", "device"]
)
def test_results_are_late_only_where_launches_compute_and_overlap(
    changes: dict[str, object],
) -> None:
    assert read(**changes).tokens_seen is TokensSeen.AT_END


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"chunked_prefill_size": -1}, "chunked_prefill_size=-1"),
        ({"chunked_prefill_size": None}, "cannot be read"),
        ({"internal_states": []}, "0 schedulers"),
        ({"page_size": "many"}, "cannot be read"),
    ],
)
def test_what_the_simulator_does_not_know_is_refused(
    changes: dict[str, object], problem: str
) -> None:
    with pytest.raises(BenchError, match=problem):
        read(**changes)
