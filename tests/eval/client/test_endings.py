"""Endings: each thing that a server can do to a request, and what the client makes of it."""

from __future__ import annotations

import asyncio
import re
import time
from typing import Any

import msgspec
import pytest

from bana.eval.client.errors import LoadError
from bana.eval.client.plan import Endpoint, Timeouts
from bana.eval.client.run import run_load
from bana.eval.client.watch import NoWatch
from bana.eval.requests import Ending, LoadRun, Observed
from bana.eval.stub import Fault

WATCH = NoWatch()


def only(run: LoadRun) -> Observed:
    (seen,) = run.observed
    return seen


@pytest.mark.parametrize(
    ("fault", "ending", "status", "reason", "code"),
    [
        (Fault.REFUSE, Ending.REJECTED, 429, "the queue is full", "queue_full"),
        (Fault.UNAVAILABLE, Ending.REJECTED, 503, "no instance", "engine_unavailable"),
        (Fault.FLAT_ERROR, Ending.FAILED, 400, "status 400: too long", "400"),
        (Fault.CLOSE_EARLY, Ending.FAILED, None, "closed by the server", None),
        (Fault.CLOSE_MIDWAY, Ending.CUT, 200, "connection lost", None),
        (Fault.CUT_EVENT, Ending.CUT, 200, "connection lost", None),
        (Fault.NO_DONE, Ending.CUT, 200, r"without \[DONE\]", None),
        (Fault.GARBAGE, Ending.FAILED, 200, "not an event stream", None),
        (Fault.ERROR_EVENT, Ending.FAILED, 200, "error event: no instance", "engine_unavailable"),
        (Fault.NO_STREAM, Ending.FAILED, 200, "without an event stream", None),
        (Fault.HANG, Ending.UNFINISHED, None, "no token within 0.5 s", None),
        (Fault.HANG_MIDWAY, Ending.UNFINISHED, 200, "no token for 0.5 s", None),
    ],
)
def test_each_fault_has_its_ending(
    stub: Any,
    make_plan: Any,
    make_workload: Any,
    prompt_of: Any,
    endpoint: Endpoint,
    fault: Fault,
    ending: Ending,
    status: int | None,
    reason: str,
    code: str | None,
) -> None:
    timeouts = Timeouts(first_token_s=0.5, stall_s=0.5, total_s=20, drain_s=20)
    workload = make_workload(3, prompt=prompt_of(endpoint))
    with stub(fault=fault) as server:
        plan = make_plan(server.url, endpoint=endpoint, timeouts=timeouts)
        run = run_load(workload, plan, WATCH)

    for seen in run.observed:
        assert (seen.ending, seen.status, seen.code) == (ending, status, code)
        assert seen.error is not None
        assert "\n" not in seen.error
        assert seen.end_s is not None
    assert re.search(reason, run.observed[0].error or "")


def test_what_came_before_a_cut_is_kept(stub: Any, make_plan: Any, make_workload: Any) -> None:
    with stub(fault=Fault.CLOSE_MIDWAY) as server:
        seen = only(run_load(make_workload(1), make_plan(server.url), WATCH))

    assert (seen.output_tokens, seen.event_tokens) == (1, (1,))
    assert seen.first_s == seen.last_s == seen.event_times_s[0]


def test_a_request_that_never_ends_is_bounded(
    stub: Any, make_plan: Any, make_workload: Any
) -> None:
    timeouts = Timeouts(total_s=0.6, drain_s=20)
    with stub(chunk_interval_s=0.05) as server:
        workload = make_workload(1, output_tokens=1_000_000)
        seen = only(run_load(workload, make_plan(server.url, timeouts=timeouts), WATCH))

    assert seen.ending is Ending.UNFINISHED
    assert seen.error == "not over within 0.6 s of the send"


def test_the_end_of_the_run_cuts_what_is_out(stub: Any, make_plan: Any, make_workload: Any) -> None:
    timeouts = Timeouts(drain_s=0.3)
    with stub(first_delay_s=30.0) as server:
        run = run_load(make_workload(2), make_plan(server.url, timeouts=timeouts), WATCH)

    assert [seen.ending for seen in run.observed] == [Ending.UNFINISHED] * 2
    assert run.observed[0].error == "not over 0.3 s after the last send"
    assert run.duration_s < 20


def test_planned_cancellation_closes_the_connection_and_is_no_failure(
    stub: Any, make_plan: Any, make_workload: Any
) -> None:
    workload = make_workload(4, output_tokens=1_000_000, cancel_after_s=0.3)
    with stub(chunk_interval_s=0.05) as server:
        run = run_load(workload, make_plan(server.url), WATCH)
        wait_until(lambda: {r.outcome for r in server.seen("/generate")} == {"cancelled"})

    assert [seen.ending for seen in run.observed] == [Ending.CANCELLED] * 4
    assert all((seen.end_s or 0) - (seen.sent_s or 0) >= 0.3 for seen in run.observed)
    assert run.validity.is_valid


def test_an_answer_faster_than_its_cancellation_is_finished(
    stub: Any, make_plan: Any, make_workload: Any
) -> None:
    with stub() as server:
        workload = make_workload(3, cancel_after_s=15.0)
        run = run_load(workload, make_plan(server.url), WATCH)

    assert [seen.ending for seen in run.observed] == [Ending.FINISHED] * 3
    assert run.duration_s < 15


def wait_until(check: Any) -> None:
    deadline_s = time.monotonic() + 20
    while not check():
        assert time.monotonic() < deadline_s, "it did not happen in time"
        time.sleep(0.02)


def test_a_dead_server_is_an_error_before_the_run(make_plan: Any, make_workload: Any) -> None:
    with pytest.raises(LoadError, match=r"cannot connect to http://127\.0\.0\.1:9: "):
        run_load(make_workload(1), make_plan("http://127.0.0.1:9"), WATCH)


def test_a_server_that_dies_leaves_counted_failures(
    raw_server: Any, make_plan: Any, make_workload: Any
) -> None:

    async def die(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.transport.abort()

    with raw_server(die) as url:
        run = run_load(make_workload(5), make_plan(url), WATCH)

    assert [seen.ending for seen in run.observed] == [Ending.FAILED] * 5
    assert all("connection lost" in (seen.error or "") for seen in run.observed)


def test_garbage_instead_of_http_is_a_failure(
    raw_server: Any, make_plan: Any, make_workload: Any
) -> None:
    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"220 mail.example.test ESMTP\r\n\r\n")
        await writer.drain()
        await reader.read()
        writer.close()

    with raw_server(babble) as url:
        seen = only(run_load(make_workload(1), make_plan(url), WATCH))

    assert seen.ending is Ending.FAILED
    assert "not HTTP as expected" in (seen.error or "")


def answer_with(*events: bytes) -> Any:
    """A server that streams `events` to whoever asks."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        await reader.readexactly(length)
        head = b"HTTP/1.1 200 OK\r\nx-bana-instance: Node-A\r\nConnection: close\r\n\r\n"
        writer.write(head + b"".join(b"data: %s\n\n" % event for event in events))
        writer.close()

    return answer


def test_an_abort_before_the_first_token_is_a_rejection(
    raw_server: Any, make_plan: Any, make_workload: Any
) -> None:
    """SGLang has answered 200 by the time its scheduler finds the queue full."""
    abort = b'{"type": "abort", "message": "queue full", "status_code": 503}'
    event = b'{"text": "", "meta_info": {"completion_tokens": 0, "finish_reason": %s}}' % abort
    with raw_server(answer_with(event, b"[DONE]")) as url:
        seen = only(run_load(make_workload(1), make_plan(url), WATCH))

    assert (seen.ending, seen.code, seen.status) == (Ending.REJECTED, "503", 200)
    assert seen.instance == "Node-A"


def test_invisible_output_counts_when_it_is_told(
    raw_server: Any, make_plan: Any, make_workload: Any
) -> None:
    usage = b'{"choices": [], "usage": {"completion_tokens": 1}}'
    with raw_server(answer_with(b'{"choices": [{"text": ""}]}', usage, b"[DONE]")) as url:
        plan = make_plan(url, endpoint=Endpoint.COMPLETIONS)
        seen = only(run_load(make_workload(1), plan, WATCH))

    assert (seen.ending, seen.output_tokens, seen.event_tokens) == (Ending.FINISHED, 1, (1,))


def test_an_answer_without_a_token_is_a_failure(
    raw_server: Any, make_plan: Any, make_workload: Any
) -> None:
    with raw_server(answer_with(b"[DONE]")) as url:
        seen = only(run_load(make_workload(1), make_plan(url), WATCH))

    assert (seen.ending, seen.error) == (Ending.FAILED, "the answer has no token")


def test_a_key_that_is_refused_is_a_failure_of_each_request(
    stub: Any, make_plan: Any, make_workload: Any
) -> None:
    with stub(secret="right") as server:
        run = run_load(make_workload(2), make_plan(server.url), WATCH)
        plan = make_plan(server.url)
        target = msgspec.structs.replace(plan.target, key="right")
        good = run_load(make_workload(2), msgspec.structs.replace(plan, target=target), WATCH)

    assert [(s.ending, s.status) for s in run.observed] == [(Ending.FAILED, 401)] * 2
    assert [s.ending for s in good.observed] == [Ending.FINISHED] * 2
