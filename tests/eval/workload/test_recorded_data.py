"""The real traces: read, replayed, and of the shape that their folder's README states."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bana.eval.requests import Workload
from bana.eval.workload.build import build_workload
from bana.eval.workload.spec import TraceSpec
from bana.eval.workload.spec_reader import read_workload_spec
from bana.eval.workload.traces import read_trace

ROOT = Path(__file__).parents[3]
DATA = Path(os.environ.get("BANA_DATA", ROOT.parent / "shared" / "data"))


def data(name: str) -> str:
    if not (DATA / name).exists():
        pytest.skip(f"{name} is not there; set BANA_DATA to the folder of recorded workloads")
    return str(DATA / name)


def build(**sections: Any) -> Workload:
    return build_workload(read_workload_spec(sections), 1)


def test_azure_has_its_known_shape() -> None:
    workload = build(arrivals={"kind": "trace"}, trace={"path": data("traces/azure2023_conv.csv")})
    facts: Any = workload.facts

    assert len(workload.requests) == 19_366
    assert workload.window_s == pytest.approx(3502, abs=1)
    assert facts["rate_rps"] == pytest.approx(5.53, abs=0.01)
    assert facts["arrival_cv"] == pytest.approx(1.09, abs=0.01)
    assert facts["input_tokens"]["mean"] == pytest.approx(1155, abs=1)
    assert facts["input_tokens"]["p50"] == pytest.approx(1020, abs=1)
    assert facts["input_tokens"]["p99"] == pytest.approx(4142, abs=1)
    assert facts["output_tokens"]["mean"] == pytest.approx(211, abs=1)
    assert facts["output_tokens"]["p50"] == pytest.approx(129, abs=1)
    assert facts["output_tokens"]["p99"] == pytest.approx(601, abs=1)


@pytest.mark.parametrize("scale", [1.0, 1 / 32])
def test_mooncake_has_its_known_shape_at_any_length_scale(scale: float) -> None:
    workload = build(
        arrivals={"kind": "trace"},
        trace={"path": data("traces/mooncake_fast25_synthetic.jsonl"), "length_scale": scale},
    )
    facts: Any = workload.facts

    assert len(workload.requests) == 3993
    assert workload.window_s == pytest.approx(1022, abs=1)
    assert facts["rate_rps"] == pytest.approx(3.91, abs=0.01)
    assert facts["arrival_cv"] == pytest.approx(1.0, abs=0.05)
    assert facts["shared_prefix_share"] == pytest.approx(0.651, abs=0.001)


def test_mooncakes_prompts_share_what_its_ids_say() -> None:
    path = data("traces/mooncake_fast25_synthetic.jsonl")
    known: dict[int, int] = {}
    blocks = hits = tokens = seen = 0
    for row in read_trace(TraceSpec(path)).rows:
        for place, hash_id in enumerate(row.hash_ids):
            length = min(512, row.input_tokens - 512 * place)
            seen += min(length, known.get(hash_id, 0))
            hits += hash_id in known
            known[hash_id] = max(length, known.get(hash_id, 0))
        blocks += len(row.hash_ids)
        tokens += row.input_tokens
    facts = build(arrivals={"kind": "trace"}, trace={"path": path}).facts

    assert hits / blocks == pytest.approx(0.640, abs=0.0005)
    assert facts["shared_prefix_share"] == seen / tokens


def test_agent_sessions_have_their_known_shape() -> None:
    workload = build(arrivals={"kind": "trace"}, trace={"path": data("traces/lmcache_miniswe")})
    sessions: dict[str, list[str]] = {}
    for request in workload.requests:
        sessions.setdefault(request.session, []).append(request.prompt.text or "")

    assert len(workload.requests) == 342
    assert len(sessions) == 18
    grown = [
        later.startswith(text) for texts in sessions.values() for text, later in pairwise(texts)
    ]
    assert np.mean(grown) == 1.0


@pytest.mark.parametrize("name", ["mt_bench_question", "vicuna_bench_question"])
def test_chat_questions_are_conversations(name: str) -> None:
    workload = build(
        arrivals={"rate_rps": 10.0, "duration_s": 30.0},
        prompts={"file": data(f"datasets/mt_bench/{name}.jsonl"), "form": "chat"},
        turns={"think_s": 2.0},
    )

    turns = {len(r.prompt.messages or ()) for r in workload.requests}
    assert turns == ({1, 3} if name == "mt_bench_question" else {1})


def test_long_documents_are_prompts() -> None:
    workload = build(
        arrivals={"rate_rps": 1.0, "duration_s": 20.0},
        prompts={"file": data("datasets/loogle/longdep_qa.jsonl"), "field": "input"},
    )

    assert len({r.prompt.text for r in workload.requests}) == 5
