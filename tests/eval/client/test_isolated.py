from __future__ import annotations

from typing import Any

import pytest

from bana.eval.client.errors import LoadError
from bana.eval.client.isolated import (
    OUTPUT_TOKENS,
    ROUNDS,
    Isolated,
    TtftPoint,
    choose_models,
    measure_isolated,
    summarise_isolated,
)
from bana.eval.client.watch import NoWatch, Tally
from bana.eval.requests import Ending, Limits, Observed, Offered, Phase, Prompt, Workload
from bana.eval.stub import Fault
from bana.slo.errors import ConfigError

CURVE = Isolated((TtftPoint(100, 0.1), TtftPoint(200, 0.2), TtftPoint(400, 0.8)), 0.02, 9)


def of_lengths(*lengths: int) -> Workload:
    requests = tuple(
        Offered(i, 0.01 * i, Prompt(token_ids=list(range(n))), n, 3) for i, n in enumerate(lengths)
    )
    return Workload(requests, 1.0, 0, "", {})


def answered(length: int, ttft_s: float, tokens: int = 5, tpot_s: float = 0.1) -> Observed:
    return Observed(
        index=0,
        due_s=0.0,
        ending=Ending.FINISHED,
        slo_class="default",
        limits=Limits(),
        phase=Phase.WINDOW,
        prompt_tokens=length,
        asked_tokens=tokens,
        sent_s=1.0,
        first_s=1.0 + ttft_s,
        last_s=1.0 + ttft_s + tpot_s * (tokens - 1),
        output_tokens=tokens,
    )


@pytest.mark.parametrize(
    ("tokens", "ttft_s"),
    [(1, 0.1), (100, 0.1), (150, 0.15), (200, 0.2), (300, 0.5), (400, 0.8), (500, 1.1)],
)
def test_ttft_is_linear_between_lengths_and_beyond(tokens: int, ttft_s: float) -> None:
    assert CURVE.estimate_ttft(tokens) == pytest.approx(ttft_s)


def test_one_length_is_taken_in_proportion() -> None:
    one = Isolated((TtftPoint(100, 0.1),), None, 3)

    assert one.estimate_ttft(50) == one.estimate_ttft(100) == 0.1
    assert one.estimate_ttft(300) == pytest.approx(0.3)


def test_medians_that_never_fall() -> None:
    seen = [answered(n, t) for n, t in [(10, 0.1), (10, 0.5), (10, 0.2), (50, 0.15), (90, 0.4)]]

    found = summarise_isolated(seen)

    assert [p.prompt_tokens for p in found.points] == [10, 50, 90]
    assert [p.ttft_s for p in found.points] == pytest.approx([0.2, 0.2, 0.4])
    assert found.tpot_s == pytest.approx(0.1)
    assert found.requests == 5


def test_answers_of_one_token_have_no_tpot() -> None:
    assert summarise_isolated([answered(10, 0.1, tokens=1)]).tpot_s is None


def test_lengths_are_those_of_the_workload_each_once() -> None:
    models = choose_models(of_lengths(*range(1, 102)).requests)
    assert [m.prompt_tokens for m in models] == [1, 26, 51, 76, 101]
    assert [m.prompt_tokens for m in choose_models(of_lengths(7, 7, 7).requests)] == [7]


def test_the_idle_server_is_measured_one_request_at_a_time(stub: Any, make_plan: Any) -> None:
    most_out = []

    class Recorder(NoWatch):
        def show(self, tally: Tally) -> None:
            most_out.append(server.server.log.generating)

    with stub(first_delay_s=0.03, chunk_interval_s=0.005) as server:
        found = measure_isolated(of_lengths(20, 40, 300), make_plan(server.url), Recorder())
        asked = [r.body for r in server.seen("/generate")]

    assert [p.prompt_tokens for p in found.points] == [20, 40, 300]
    assert all(point.ttft_s >= 0.03 for point in found.points)
    assert found.tpot_s is not None
    assert 0.001 < found.tpot_s < 2.0
    assert len(asked) == ROUNDS * 3
    assert found.requests == (ROUNDS - 1) * 3
    assert {b["sampling_params"]["max_new_tokens"] for b in asked} == {OUTPUT_TOKENS}
    assert len({tuple(b["input_ids"]) for b in asked}) == len(asked)
    assert max(most_out) <= 1


def test_a_server_that_does_not_answer_cannot_be_measured(stub: Any, make_plan: Any) -> None:
    with (
        stub(fault=Fault.UNAVAILABLE) as server,
        pytest.raises(LoadError, match="ended rejected: status 503: no instance"),
    ):
        measure_isolated(of_lengths(5), make_plan(server.url), NoWatch())
    with pytest.raises(LoadError, match="cannot connect"):
        measure_isolated(of_lengths(5), make_plan("http://127.0.0.1:9"), NoWatch())


def test_without_requests_there_are_no_lengths(make_plan: Any) -> None:
    with pytest.raises(ConfigError, match="no requests"):
        measure_isolated(of_lengths(), make_plan("http://127.0.0.1:9"), NoWatch())
