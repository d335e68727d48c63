"""Unmodified clients and the load generator at the front door of the embedded model's cluster."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import openai
import pytest

from bana.eval.client.isolated import measure_isolated
from bana.eval.client.plan import ClientPlan, Endpoint
from bana.eval.client.run import run_load
from bana.eval.client.target import Target
from bana.eval.client.watch import NoWatch
from bana.eval.requests import Ending, Limits, Message, Offered, Prompt, Workload
from sglang_bana.cluster.models import resolve_model

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

INSTANCES = ("instance-0", "instance-1")
TOKENS = 6
PROMPTS = {
    Endpoint.GENERATE: Prompt(token_ids=list(range(100, 180))),
    Endpoint.COMPLETIONS: Prompt(token_ids=list(range(200, 280))),
    Endpoint.CHAT: Prompt(messages=[Message("user", "Count to one hundred, slowly.")]),
}
FOREIGN = {
    "native": ("/generate", {"input_ids": [5, 1_000_000_000]}),
    "negative": ("/generate", {"input_ids": [-1]}),
    "batch": ("/generate", {"input_ids": [[5], [1_000_000_000]]}),
    "completion": ("/v1/completions", {"model": "default", "prompt": [1_000_000_000]}),
    "stop": ("/generate", {"text": "x", "sampling_params": {"stop_token_ids": [-1]}}),
}


@pytest.fixture(scope="module")
def cluster(start_cluster) -> Iterator:
    with start_cluster("--model", "smollm2", "--instances", "2") as running:
        yield running


@pytest.fixture(scope="module")
def client(cluster) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{cluster.url}/v1", api_key="none", timeout=120)


def test_openai_chat_streams_the_capital_of_france(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="default",
        messages=[{"role": "user", "content": "What is the capital of France?"}],
        max_tokens=24,
        temperature=0,
        stream=True,
    )
    pieces = [c.choices[0].delta.content or "" for c in stream if c.choices]
    assert len([p for p in pieces if p]) > 1
    assert "Paris" in "".join(pieces)


def test_openai_completion_reports_usage(client: openai.OpenAI) -> None:
    done = client.completions.create(
        model="default", prompt="The capital of France is", max_tokens=8, temperature=0
    )
    assert "Paris" in done.choices[0].text
    assert done.usage is not None
    assert done.usage.completion_tokens == 8


def test_openai_client_sees_a_typed_error(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="default", prompt="x", max_tokens=4, temperature=-3)
    body = caught.value.response.json()
    assert set(body) == {"error"}
    assert {"type", "code", "message", "param"} <= set(body["error"])


def test_other_api_styles_are_served_too(cluster, client: openai.OpenAI) -> None:
    asked = [{"role": "user", "content": "What is the capital of France?"}]
    message = cluster.post(
        "/v1/messages", {"model": "default", "max_tokens": 16, "temperature": 0, "messages": asked}
    )
    assert "Paris" in message["content"][0]["text"]
    models = client.models.list().data
    assert len(models) == 1
    response = client.responses.create(
        model=models[0].id,
        input="What is the capital of France?",
        max_output_tokens=16,
        temperature=0,
        store=False,
    )
    assert "Paris" in response.output_text
    assert cluster.post("/tokenize", {"model": "default", "prompt": "Paris"})["tokens"]


def test_promise_is_echoed_and_a_bad_one_refused(client: openai.OpenAI) -> None:
    ask = client.completions.with_raw_response.create
    words = {"x-slo-ttft-ms": "1500", "x-bana-slo-class": "batch"}
    kept = ask(model="default", prompt="x", max_tokens=2, extra_headers=words)
    assert kept.headers["x-bana-slo-class"] == "batch"
    assert float(kept.headers["x-bana-slo-ttft-ms"]) == 1500
    with pytest.raises(openai.BadRequestError, match="positive number"):
        ask(model="default", prompt="x", max_tokens=2, extra_headers={"x-slo-ttft-ms": "soon"})


@pytest.mark.parametrize("case", FOREIGN)
def test_a_token_that_the_model_lacks_is_refused_and_ends_no_instance(cluster, case: str) -> None:
    pids = [cluster.pid_of(name) for name in INSTANCES]
    with pytest.raises(HTTPError) as caught:
        cluster.post(*FOREIGN[case])
    with caught.value as refused:
        answer = json.loads(refused.read())
    assert refused.code == 400
    assert set(answer) == {"error"}
    assert {"type", "code", "message", "param"} <= set(answer["error"])
    assert "no token of this model" in answer["error"]["message"]
    states = {i["name"]: i["state"] for i in cluster.front_door()["instances"]}
    assert states == dict.fromkeys(INSTANCES, "up")
    assert len(cluster.greedy_ids([5, 6, 7], 2)) == 2
    assert [cluster.pid_of(name) for name in INSTANCES] == pids


def test_sglang_program_runs_gen_select_fork_and_streaming(cluster) -> None:
    argv = [sys.executable, "-m", "sglang_bana.engine.frontend_program", cluster.url]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    capital, choice, facts = [json.loads(line) for line in done.stdout.splitlines()]
    assert "Paris" in capital["answer"]
    assert capital["tokens"] > 1
    assert choice["answer"] in ("sun", "moon")
    assert len(facts["answer"].split(" | ")) == 2


def test_bench_serving_completes_every_request(cluster, tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "sglang.bench_serving", "--backend", "sglang"]
    argv += ["--base-url", cluster.url, "--dataset-name", "random-ids", "--num-prompts", "8"]
    argv += ["--random-input-len", "32", "--random-output-len", "8", "--disable-tqdm"]
    argv += ["--tokenizer", resolve_model("smollm2"), "--request-rate", "4"]
    argv += ["--output-file", str(tmp_path / "bench.jsonl")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    line = next(x for x in done.stdout.splitlines() if x.startswith("Successful requests"))
    assert line.split()[-1] == "8"


@pytest.mark.parametrize(
    ("endpoint", "form"),
    [
        ("generate", "token_ids"),
        pytest.param("generate", "text", marks=pytest.mark.full),
        pytest.param("completions", "token_ids", marks=pytest.mark.full),
        pytest.param("chat", "chat", marks=pytest.mark.full),
    ],
)
def test_bench_serving_offers_what_bana_exports(
    cluster, tmp_path: Path, endpoint: str, form: str
) -> None:
    asked = [*("--rate", "4", "--duration", "2", "--input-tokens", "30", "--output-tokens", "5")]
    asked += ["--arrivals", "bench_serving", "--endpoint", endpoint]
    asked += ["--set", f"workload.prompts.form={form}", "--set", "workload.arrivals.warmup_s=0"]
    argv = [sys.executable, "-m", "bana.cli.main", "eval", "live", *asked]
    told = subprocess.run(
        [*argv, "--ttft-ms", "60000", "--export-requests", "r.jsonl"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert told.returncode == 0, told.stderr
    [line] = [line for line in told.stderr.splitlines() if "bench_serving" in line]
    words = [sys.executable, *shlex.split(line)[1:], "--tokenizer", resolve_model("smollm2")]
    words[words.index("--base-url") + 1] = cluster.url
    words += ["--disable-tqdm", "--output-file", "there.jsonl", "--output-details"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    there = json.loads((tmp_path / "there.jsonl").read_bytes())
    sent = len((tmp_path / "r.jsonl").read_bytes().split(b"\n")) - 1
    assert there["completed"] == sent > 3
    assert there["slo_attainment"] == 1.0
    assert set(there["output_lens"]) == {5}
    if form == "token_ids" and endpoint == "generate":
        # The server's own count: the prompts were the ids, not the messages that stand in for them.
        assert set(there["input_lens"]) == {30}


def test_scheduler_process_itself_says_what_runs(cluster) -> None:
    instances = cluster.front_door()["instances"]
    assert [i["state"] for i in instances] == ["up", "up"]
    for instance in instances:
        assert instance["proof"]["scheduler_class"].endswith("BanaScheduler")
        assert "bana_cpu" in instance["proof"]["attention_backend"]
    assert len({i["proof"]["pid"] for i in instances}) == 2


def test_both_instances_get_work(cluster) -> None:
    for turn in range(6):
        cluster.greedy_ids([100 + turn, 200, 300], 2)
    counts = [i["dispatched_total"] for i in cluster.front_door()["instances"]]
    assert all(count > 0 for count in counts)


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


def plan_for(cluster, endpoint: Endpoint) -> ClientPlan:
    return ClientPlan(
        Target(cluster.url), endpoint, "default", lateness_limit_s=60.0, sample_interval_s=0.2
    )


@pytest.mark.parametrize("endpoint", list(Endpoint))
def test_load_generator_reads_every_answer_as_it_is_meant(cluster, endpoint: Endpoint) -> None:
    run = run_load(offer(endpoint), plan_for(cluster, endpoint), NoWatch())

    for seen in run.observed:
        assert (seen.ending, seen.status, seen.error) == (Ending.FINISHED, 200, None)
        assert (seen.output_tokens, sum(seen.event_tokens)) == (TOKENS, TOKENS)
        assert seen.instance in INSTANCES
    assert {probe.ending for probe in run.probes} == {Ending.FINISHED}
    assert len(run.samples) >= 2
    assert set(run.samples[-1].running) == set(INSTANCES)


def test_a_client_that_goes_away_frees_the_engine(cluster) -> None:
    endpoint = Endpoint.GENERATE
    workload = offer(endpoint, output_tokens=1_000, cancel_after_s=1.0)

    run = run_load(workload, plan_for(cluster, endpoint), NoWatch())

    assert {seen.ending for seen in run.observed} == {Ending.CANCELLED}
    after = run_load(offer(endpoint), plan_for(cluster, endpoint), NoWatch())
    assert {seen.ending for seen in after.observed} == {Ending.FINISHED}


def test_load_generator_measures_the_ttft_and_tpot_of_the_idle_server(cluster) -> None:
    endpoint = Endpoint.GENERATE
    found = measure_isolated(offer(endpoint), plan_for(cluster, endpoint), NoWatch())

    assert found.points[0].prompt_tokens == 80
    assert found.points[0].ttft_s > 0
    assert found.tpot_s is not None
    assert found.tpot_s > 0
