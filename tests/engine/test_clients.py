"""Unmodified clients through the front door of a real cluster on the embedded model."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from sglang_bana.cluster.models import resolve_model

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]


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
    instances = cluster.status()["front_door"]["instances"]
    assert [i["state"] for i in instances] == ["up", "up"]
    for instance in instances:
        assert instance["proof"]["scheduler_class"].endswith("BanaScheduler")
        assert "bana_cpu" in instance["proof"]["attention_backend"]
    assert len({i["proof"]["pid"] for i in instances}) == 2


def test_both_instances_get_work(cluster) -> None:
    for turn in range(6):
        cluster.greedy_ids([100 + turn, 200, 300], 2)
    counts = [i["dispatched_total"] for i in cluster.status()["front_door"]["instances"]]
    assert all(count > 0 for count in counts)
