"""Traces as workloads: times, scales, lengths and sharing are those of the trace."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from bana.eval.requests import Phase, Workload
from bana.eval.workload.build import build_workload
from bana.eval.workload.spec_reader import read_workload_spec
from bana.slo.errors import ConfigError


def replay(trace: dict[str, Any], **sections: Any) -> Workload:
    mapping = {"arrivals": {"kind": "trace"}, "trace": trace, **sections}
    return build_workload(read_workload_spec(mapping), 1)


@pytest.fixture
def azure(tmp_path: Path) -> str:
    path = tmp_path / "a.csv"
    rows = [f"2023-11-16 18:15:{2 * i:02d},{100 + i},{10 + i}" for i in range(20)]
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]))
    return str(path)


@pytest.fixture
def mooncake(tmp_path: Path) -> str:
    path = tmp_path / "m.jsonl"
    rows = [
        {
            "timestamp": 1000 * i,
            "input_length": 512 + 100,
            "output_length": 8,
            "hash_ids": [i % 2, 100 + i],
        }
        for i in range(20)
    ]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return str(path)


@pytest.fixture
def sessions(tmp_path: Path) -> str:
    folder = tmp_path / "sessions"
    folder.mkdir()
    for name in ("a", "b"):
        rows = [
            {
                "timestamp": 1_000_000 * i,
                "input": f"session {name} " + "step " * i,
                "output": "y" * 40,
                "session_id": name,
            }
            for i in range(10)
        ]
        text = "\n".join(json.dumps(row) for row in rows)
        (folder / f"{name}.jsonl").write_text(text)
    return str(folder)


def test_a_trace_is_replayed_at_its_times_with_its_lengths(azure: str) -> None:
    workload = replay({"path": azure})

    assert [r.due_s for r in workload.requests] == [2.0 * i for i in range(20)]
    assert [r.prompt_tokens for r in workload.requests] == [100 + i for i in range(20)]
    assert [r.output_tokens for r in workload.requests] == [10 + i for i in range(20)]
    assert workload.window_s == 40.0
    assert workload.facts["rate_rps"] == 0.5
    assert workload.facts["arrival_cv"] == 0.0


def test_time_is_compressed_and_no_request_left_out(azure: str) -> None:
    workload = replay({"path": azure, "time_scale": 4.0})

    assert [r.due_s for r in workload.requests] == [0.5 * i for i in range(20)]
    assert workload.facts["time_scale"] == 4.0
    assert workload.facts["rate_rps"] == 2.0


def test_a_rate_sets_the_time_scale(azure: str) -> None:
    workload = replay({"path": azure}, arrivals={"kind": "trace", "rate_rps": 5.0})

    assert workload.facts["rate_rps"] == pytest.approx(5.0)
    assert workload.facts["time_scale"] == pytest.approx(10.0)
    assert len(workload.requests) == 20


def test_phases_are_cut_from_the_trace(azure: str) -> None:
    arrivals = {"kind": "trace", "warmup_s": 10.0, "duration_s": 20.0, "cooldown_s": 4.0}
    workload = replay({"path": azure}, arrivals=arrivals)
    phases = [r.phase for r in workload.requests]

    assert phases == [Phase.WARMUP] * 5 + [Phase.WINDOW] * 10 + [Phase.COOLDOWN] * 2
    rest = replay({"path": azure}, arrivals={"kind": "trace", "warmup_s": 10.0})
    assert rest.window_s == 30.0
    with pytest.raises(ConfigError, match="lasts 40 s"):
        replay({"path": azure}, arrivals={"kind": "trace", "duration_s": 41.0})
    with pytest.raises(ConfigError, match="lasts 40 s"):
        replay({"path": azure}, arrivals={"kind": "trace", "warmup_s": 40.0})


def test_a_traces_lengths_can_arrive_by_another_process(azure: str) -> None:
    poisson = {"kind": "poisson", "rate_rps": 2.0, "duration_s": 5.0}
    workload = replay({"path": azure}, arrivals=poisson)

    assert [r.prompt_tokens for r in workload.requests] == [
        100 + i for i in range(len(workload.requests))
    ]
    with pytest.raises(ConfigError, match="has 20 requests from its offset on"):
        replay({"path": azure}, arrivals={**poisson, "duration_s": 50.0})


def test_lengths_are_scaled_and_families_laid_over_them(azure: str) -> None:
    families = {"count": 1, "shared_tokens": 25}
    workload = replay({"path": azure, "length_scale": 0.5}, prompts={"families": families})

    assert [r.prompt_tokens for r in workload.requests][:3] == [50, 51, 51]
    assert [r.output_tokens for r in workload.requests][:3] == [5, 6, 6]
    total = sum(r.prompt_tokens for r in workload.requests)
    assert workload.facts["shared_prefix_share"] == pytest.approx(25 * 19 / total)
    assert workload.facts["length_scale"] == 0.5


@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_blocks_share_what_their_ids_say(mooncake: str, scale: float) -> None:
    workload = replay({"path": mooncake, "length_scale": scale})

    assert {r.prompt_tokens for r in workload.requests} == {612 * scale}
    assert workload.facts["shared_prefix_share"] == 18 * 512 / (20 * 612)


def test_warmup_of_blocks_shares_nothing_with_the_window(mooncake: str) -> None:
    arrivals = {"kind": "trace", "warmup_s": 4.0}
    workload = replay({"path": mooncake}, arrivals=arrivals)

    assert workload.facts["shared_prefix_share"] == 14 * 512 / (16 * 612)


def test_too_many_rows_are_refused_and_fewer_chosen_by_a_segment(azure: str) -> None:
    with pytest.raises(ConfigError, match="max_requests=5"):
        replay({"path": azure}, arrivals={"kind": "trace", "max_requests": 5})

    assert len(replay({"path": azure, "max_requests": 5}).requests) == 5


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_recorded_sessions_grow_and_keep_their_names(sessions: str, scale: float) -> None:
    workload = replay({"path": sessions, "length_scale": scale}, classes={"a": 0.5, "b": 0.5})

    assert len(workload.requests) == 20
    for name in ("a", "b"):
        turns = [r for r in workload.requests if r.session == name]
        texts = [r.prompt.text or "" for r in turns]
        assert all(later.startswith(text) for text, later in pairwise(texts))
        assert len({r.slo_class for r in turns}) == 1
        assert {r.output_tokens for r in turns} == {10 * scale}


def test_recorded_sessions_are_neither_token_ids_nor_longer(sessions: str) -> None:
    with pytest.raises(ConfigError, match="recorded sessions are text"):
        replay({"path": sessions}, prompts={"form": "token_ids"})
    with pytest.raises(ConfigError, match="cannot be made longer"):
        replay({"path": sessions, "length_scale": 2.0})


def test_a_trace_that_says_what_is_shared_takes_no_families(mooncake: str) -> None:
    families = {"count": 1, "shared_tokens": 25}

    with pytest.raises(ConfigError, match="families"):
        replay({"path": mooncake}, prompts={"families": families})


def test_requests_at_one_moment_are_a_burst(tmp_path: Path) -> None:
    path = tmp_path / "burst.csv"
    row = "2023-11-16 18:15:01,5,5"
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", row, row, row]))
    workload = replay({"path": str(path)})

    assert [r.due_s for r in workload.requests] == [0.0, 0.0, 0.0]
    assert workload.facts["arrival_cv"] is None
