from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bana.eval.client.run import run_load
from bana.eval.client.sampling import read_loads, read_metrics
from bana.eval.client.watch import NoWatch
from bana.eval.requests import Ending

BANA = b"""# HELP bana_engine_truth What the instance last published.
# TYPE bana_engine_truth gauge
bana_router_belief{instance="a",quantity="in_flight"} 9.0
bana_engine_truth{instance="a",quantity="running_requests"} 3.0
bana_engine_truth{instance="a",quantity="waiting_requests"} 1.0
bana_engine_truth{instance="b",quantity="running_requests"} 5.0
bana_engine_truth{instance="b",quantity="waiting_requests"} 0.0
bana_engine_truth{instance="b",quantity="used_tokens"} 4096.0
"""
BELIEF = b"""bana_router_belief{instance="a",quantity="in_flight"} 2.0
bana_router_belief{instance="a",quantity="waiting_requests"} 1.0
"""
SGLANG = b"""sglang:num_running_reqs{engine_type="unified",model_name="m",priority=""} 7.0
sglang:num_running_reqs{engine_type="unified",model_name="m",priority="3"} 2.0
sglang:num_queue_reqs{engine_type="unified",model_name="m",priority=""} 4.0
sglang:num_grammar_queue_reqs{engine_type="unified",model_name="m"} 1.0
sglang:e2e_request_latency_seconds_bucket{le="0.1"} 7.0
"""
VLLM = b"""vllm:num_requests_running{engine="0",model_name="m"} 2.0
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
vllm:num_requests_running{engine="1",model_name="m"} 3.0
vllm:num_requests_waiting{engine="1",model_name="m"} NaN
"""


@pytest.mark.parametrize(
    ("body", "running", "waiting"),
    [
        (BANA, {"a": 3.0, "b": 5.0}, {"a": 1.0, "b": 0.0}),
        (BELIEF, {"a": 2.0}, {"a": 1.0}),
        (SGLANG, {"server": 7.0}, {"server": 4.0}),
        (SGLANG.replace(b"sglang:", b"sglang_"), {"server": 7.0}, {"server": 4.0}),
        (VLLM, {"0": 2.0, "1": 3.0}, {"0": 1.0}),
    ],
)
def test_expositions(body: bytes, running: dict[str, float], waiting: dict[str, float]) -> None:
    found = read_metrics(body)

    assert found is not None
    assert (found.running, found.waiting) == (running, waiting)


@pytest.mark.parametrize("body", [b"", b"<html>", b"up 1\n", b"sglang:num_running_reqs{ 3\n"])
def test_what_tells_nothing_is_nothing(body: bytes) -> None:
    assert read_metrics(body) is None
    assert read_loads(body) is None


def test_loads_by_rank() -> None:
    body = b"""{"loads": [{"dp_rank": 0, "num_running_reqs": 2, "num_waiting_reqs": 1, "x": []},
                          {"dp_rank": 1, "num_running_reqs": 0, "num_waiting_reqs": 0}]}"""

    found = read_loads(body)

    assert found is not None
    assert (found.running, found.waiting) == ({"0": 2.0, "1": 0.0}, {"0": 1.0, "1": 0.0})
    assert read_loads(b'{"loads": []}') is None


def serve_paths(answers: dict[bytes, bytes]) -> Any:
    """GETs as in `answers`, other paths 404, and POSTs a stream of one token."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                method, path, _ = head.split(b" ", 2)
                asked.append(path)
                if method == b"POST":
                    length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
                    await reader.readexactly(length)
                    body = b'data: {"meta_info": {"completion_tokens": 1}}\n\ndata: [DONE]\n\n'
                else:
                    body = answers.get(path, b"")
                status = b"200 OK" if body else b"404 Not Found"
                size = b"%d" % len(body)
                writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: " + size + b"\r\n\r\n")
                writer.write(body)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    asked: list[bytes] = []
    answer.asked = asked  # type: ignore[attr-defined]
    return answer


def test_a_run_samples_what_the_server_tells(
    raw_server: Any, make_plan: Any, make_workload: Any
) -> None:
    with raw_server(serve_paths({b"/metrics": BANA})) as url:
        plan = make_plan(url, sample_interval_s=0.1)
        run = run_load(make_workload(10, 0.1), plan, NoWatch())

    assert 2 <= len(run.samples) <= 12
    assert run.samples[0].running == {"a": 3.0, "b": 5.0}
    times_s = [sample.at_s for sample in run.samples]
    assert times_s == sorted(times_s)
    assert times_s[0] >= 0


def test_the_second_source_is_asked_when_the_first_tells_nothing(
    stub: Any, make_plan: Any, make_workload: Any
) -> None:
    with stub() as server:
        plan = make_plan(server.url, sample_interval_s=0.1)
        run = run_load(make_workload(10, 0.1), plan, NoWatch())

    assert len(run.samples) >= 2
    assert set(run.samples[0].running) == {"0"}


def test_a_server_that_tells_nothing_is_soon_left_alone(
    raw_server: Any, make_plan: Any, make_workload: Any
) -> None:
    answer = serve_paths({})
    with raw_server(answer) as url:
        plan = make_plan(url, sample_interval_s=0.1)
        run = run_load(make_workload(10, 0.1), plan, NoWatch())

    assert run.samples == ()
    assert {seen.ending for seen in run.observed} == {Ending.FINISHED}
    assert answer.asked.count(b"/metrics") == answer.asked.count(b"/v1/loads") == 1


def test_a_source_that_hangs_delays_nobody(
    raw_server: Any, make_plan: Any, make_workload: Any
) -> None:
    async def hang_on_get(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        start = await reader.readexactly(4)
        if start.startswith(b"GET"):
            await reader.read()
            writer.close()
            return
        rest = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(rest.lower().partition(b"content-length:")[2].split()[0]))
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
        writer.write(b'data: {"meta_info": {"completion_tokens": 1}}\n\ndata: [DONE]\n\n')
        writer.close()

    with raw_server(hang_on_get) as url:
        plan = make_plan(url, sample_interval_s=0.1)
        run = run_load(make_workload(5, 0.05), plan, NoWatch())

    assert run.samples == ()
    assert {seen.ending for seen in run.observed} == {Ending.FINISHED}
