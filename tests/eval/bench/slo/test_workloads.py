"""Every load of a seed offers the same requests, at exactly its rate, with prompts of its own."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from bana.eval.bench.errors import BenchError
from bana.eval.bench.gaps import TOLERANCE
from bana.eval.bench.slo.workloads import (
    CONVERSATION_TRACE,
    Ask,
    Length,
    Shape,
    find_trace,
    name_source,
    offer_requests,
)
from bana.eval.requests import Phase, Workload

SHAPE = Shape(Length(1155.0, 4142.0), Length(211.0, 601.0), 1.09, 0.1, CONVERSATION_TRACE)
BURSTY = Shape(Length(2048.0, 9560.0), Length(28.0, 79.0), 13.0, 0.1)
ASK = Ask(
    seed=3,
    rate_rps=2.0,
    requests=40,
    warmup_requests=4,
    first_token_id=1_000,
    last_token_id=40_000,
    max_input_tokens=4_096,
)


def at_rate(rate_rps: float, seed: int = 3) -> Ask:
    return msgspec.structs.replace(ASK, rate_rps=rate_rps, seed=seed)


def count(workload: Workload) -> int:
    return sum(request.phase is Phase.WINDOW for request in workload.requests)


def write_trace(folder: Path) -> Path:
    path = folder / CONVERSATION_TRACE
    path.parent.mkdir()
    rows = [f"2023-11-16 18:{i // 60:02}:{i % 60:02}.000,{100 + i},{10 + i}" for i in range(3_400)]
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]) + "\n")
    return path


@pytest.mark.parametrize("shape", [SHAPE, BURSTY])
@pytest.mark.parametrize("rate_rps", [0.4, 2.0, 7.0])
def test_the_rate_is_the_one_that_was_asked_for(shape: Shape, rate_rps: float) -> None:
    workload = offer_requests(shape, at_rate(rate_rps), None)
    assert count(workload) / workload.window_s == pytest.approx(rate_rps)
    assert abs(count(workload) - 40) <= TOLERANCE * 40
    assert any(request.phase is Phase.WARMUP for request in workload.requests) or shape is BURSTY


@pytest.mark.parametrize("shape", [SHAPE, BURSTY])
def test_another_rate_is_the_same_requests_with_other_prompts(shape: Shape) -> None:
    slow, fast = (offer_requests(shape, at_rate(rate), None) for rate in (1.0, 2.5))
    pairs = list(zip(slow.requests, fast.requests, strict=True))
    for one, other in pairs:
        assert one.due_s == pytest.approx(2.5 * other.due_s)
        assert (one.prompt_tokens, one.output_tokens) == (other.prompt_tokens, other.output_tokens)
        assert list(one.prompt.token_ids or ()) != list(other.prompt.token_ids or ())


def test_equal_asks_give_equal_bytes_and_other_seeds_other_requests() -> None:
    one, again, other = (offer_requests(SHAPE, at_rate(2.0, seed), None) for seed in (3, 3, 4))
    assert one.fingerprint == again.fingerprint != other.fingerprint
    lengths = [[request.prompt_tokens for request in w.requests] for w in (one, other)]
    assert lengths[0] != lengths[1]


def test_token_ids_stay_in_the_vocabulary() -> None:
    small = msgspec.structs.replace(ASK, first_token_id=100, last_token_id=700)
    workload = offer_requests(SHAPE, small, None)
    ids = {i for request in workload.requests for i in request.prompt.token_ids or ()}
    assert min(ids) >= 100
    assert max(ids) < 700


def test_bursts_that_never_fill_a_window_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bana.eval.bench.gaps.MAX_DRAWS", 0)
    with pytest.raises(BenchError, match="lower the CV"):
        offer_requests(BURSTY, ASK, None)


def test_a_trace_is_replayed_where_the_data_folder_has_it(tmp_path: Path) -> None:
    assert find_trace(SHAPE, {}) is None
    assert find_trace(SHAPE, {"BANA_DATA": str(tmp_path)}) is None
    path = write_trace(tmp_path)
    assert find_trace(BURSTY, {"BANA_DATA": str(tmp_path)}) is None
    trace = find_trace(SHAPE, {"BANA_DATA": str(tmp_path)})
    assert trace == path

    workload = offer_requests(SHAPE, at_rate(2.0), trace)

    assert count(workload) / workload.window_s == pytest.approx(2.0)
    assert len(workload.requests) == 44
    # One row a second, from the third seed's segment on, a tenth as long.
    assert workload.requests[0].prompt_tokens == 160
    said = name_source(SHAPE, trace)
    assert (CONVERSATION_TRACE in said, str(tmp_path) in said) == (True, False)
    assert name_source(SHAPE, None).startswith("synthesised")
