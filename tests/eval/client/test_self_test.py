from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import msgspec
import psutil
import pytest

from bana.eval.client.plan import Endpoint
from bana.eval.client.self_test import (
    CHUNKS_PER_S,
    REPLAYED_S,
    STREAM_S,
    cut_workload,
    judge_self_test,
    null_server,
    run_self_test,
)
from bana.eval.client.watch import NoWatch
from bana.eval.requests import Ending, LoadRun, Validity

UNREACHABLE = "http://127.0.0.1:9"
TIED = """
import sys, time
from bana.eval.client.self_test import null_server
with null_server(10.0) as target:
    print(target.port, flush=True)
    time.sleep(600)
"""


def test_the_client_is_measured_without_the_server_under_test(
    make_plan: Any, make_workload: Any, prompt_of: Any, endpoint: Endpoint
) -> None:
    workload = make_workload(20, 0.02, prompt=prompt_of(endpoint), cancel_after_s=0.001)

    found = run_self_test(workload, make_plan(UNREACHABLE, endpoint=endpoint), NoWatch())

    assert (found.requests, found.lost, found.is_fit) == (20, 0, True)
    assert 0 <= found.lateness_p99_s < 60
    assert 0 < found.ttft_p99_s < 60


def test_only_the_first_seconds_are_replayed(make_workload: Any) -> None:
    workload = make_workload(1_000, 0.1, output_tokens=100_000, cancel_after_s=1.0)
    late = tuple(msgspec.structs.replace(r, due_s=r.due_s + 7) for r in workload.requests)

    found = cut_workload(msgspec.structs.replace(workload, requests=late))

    assert [r.due_s for r in found.requests[:2]] == pytest.approx([0.0, 0.1])
    assert len(found.requests) == pytest.approx(REPLAYED_S / 0.1, abs=1)
    assert {r.output_tokens for r in found.requests} == {int(STREAM_S * CHUNKS_PER_S)}
    assert {r.cancel_after_s for r in found.requests} == {None}


def observed(make_workload: Any, **changes: Any) -> LoadRun:
    from bana.eval.client.call import Call, Conclusion
    from bana.eval.client.events import NativeReader

    (offered,) = make_workload(1).requests
    call = Call(0.0, offered, "id", NativeReader())
    call.conclude(1.0, Conclusion(Ending.UNFINISHED, "x"))
    seen = msgspec.structs.replace(call.observe(0.0), **changes)
    return LoadRun((seen,), (), (), 1.0, 1.0, Validity(True))


@pytest.mark.parametrize(
    ("changes", "is_fit"),
    [
        ({"ending": Ending.FINISHED, "sent_s": 0.01, "first_s": 0.02}, True),
        ({"ending": Ending.FINISHED, "sent_s": 0.06, "first_s": 0.07}, False),
        ({"ending": Ending.CUT, "sent_s": 0.01, "first_s": 0.02}, False),
        ({"sent_s": None}, False),
    ],
)
def test_a_client_is_fit_when_it_is_on_time_and_loses_nothing(
    make_workload: Any, changes: dict[str, Any], is_fit: bool
) -> None:
    assert judge_self_test(observed(make_workload, **changes), 0.05).is_fit is is_fit


def test_the_null_server_ends_with_whoever_started_it() -> None:
    starter = subprocess.Popen([sys.executable, "-c", TIED], stdout=subprocess.PIPE)
    try:
        assert starter.stdout is not None
        assert int(starter.stdout.readline()) > 0
        (server,) = psutil.Process(starter.pid).children()
    finally:
        starter.kill()
        starter.communicate()
    psutil.wait_procs([server], timeout=20)
    assert not server.is_running()


def test_the_null_server_is_gone_after_its_block() -> None:
    with null_server(10.0) as target:
        children = psutil.Process().children()
        assert target.port > 0
        assert any("bana.eval.null_server" in " ".join(c.cmdline()) for c in children)
    deadline_s = time.monotonic() + 20
    left = [c for c in children if c.is_running()]
    while left and time.monotonic() < deadline_s:
        time.sleep(0.05)
        left = [c for c in children if c.is_running()]
    assert left == []
