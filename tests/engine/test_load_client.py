"""The load generator on a real cluster: what SGLang really answers, at each endpoint."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from bana.eval.client.isolated import measure_isolated
from bana.eval.client.plan import ClientPlan, Endpoint
from bana.eval.client.run import run_load
from bana.eval.client.target import Target
from bana.eval.client.watch import NoWatch
from bana.eval.requests import Ending, Limits, Message, Offered, Prompt, Workload

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

TOKENS = 6
PROMPTS = {
    Endpoint.GENERATE: Prompt(token_ids=list(range(100, 180))),
    Endpoint.COMPLETIONS: Prompt(token_ids=list(range(200, 280))),
    Endpoint.CHAT: Prompt(messages=[Message("user", "Count to one hundred, slowly.")]),
}


@pytest.fixture(scope="module")
def cluster(start_cluster: Any) -> Iterator[Any]:
    with start_cluster("--model", "smollm2") as running:
        yield running


def offer(endpoint: Endpoint, **fields: Any) -> Workload:
    requests = tuple(
        Offered(
            index=index,
            due_s=index * 0.3,
            **{
                "prompt": PROMPTS[endpoint],
                "prompt_tokens": 80,
                "output_tokens": TOKENS,
                "limits": Limits(ttft_s=5.0, tpot_s=1.0),
                **fields,
            },
        )
        for index in range(6)
    )
    return Workload(requests, 2.0, 0, "", {})


def plan_for(cluster: Any, endpoint: Endpoint) -> ClientPlan:
    return ClientPlan(
        Target(cluster.url), endpoint, "default", lateness_limit_s=60.0, sample_interval_s=0.2
    )


@pytest.mark.parametrize("endpoint", list(Endpoint))
def test_every_answer_is_read_as_it_is_meant(cluster: Any, endpoint: Endpoint) -> None:
    run = run_load(offer(endpoint), plan_for(cluster, endpoint), NoWatch())

    for seen in run.observed:
        assert (seen.ending, seen.status, seen.error) == (Ending.FINISHED, 200, None)
        assert (seen.output_tokens, sum(seen.event_tokens)) == (TOKENS, TOKENS)
        assert seen.instance is not None
    assert {probe.ending for probe in run.probes} == {Ending.FINISHED}
    assert len(run.samples) >= 2
    assert set(run.samples[-1].running) == {seen.instance for seen in run.observed}


def test_a_client_that_goes_away_frees_the_engine(cluster: Any) -> None:
    endpoint = Endpoint.GENERATE
    workload = offer(endpoint, output_tokens=1_000, cancel_after_s=1.0)

    run = run_load(workload, plan_for(cluster, endpoint), NoWatch())

    assert {seen.ending for seen in run.observed} == {Ending.CANCELLED}
    after = run_load(offer(endpoint), plan_for(cluster, endpoint), NoWatch())
    assert {seen.ending for seen in after.observed} == {Ending.FINISHED}


def test_the_idle_server_has_a_ttft_and_a_tpot(cluster: Any) -> None:
    endpoint = Endpoint.GENERATE
    found = measure_isolated(offer(endpoint), plan_for(cluster, endpoint), NoWatch())

    assert found.points[0].prompt_tokens == 80
    assert found.points[0].ttft_s > 0
    assert found.tpot_s is not None
    assert found.tpot_s > 0
