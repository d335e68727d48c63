from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from bana.eval.client.interruption import stopped_by_signals

PATIENCE_S = 60.0
PROGRAM = """
import json, sys
from bana.eval.client.plan import ClientPlan
from bana.eval.client.run import run_load
from bana.eval.client.target import Target
from bana.eval.client.watch import NoWatch
from bana.eval.requests import Offered, Prompt, Workload

class Watch(NoWatch):
    def show(self, tally):
        if tally.done >= 3:
            print("measuring", flush=True)

asked = [Offered(i, i * 0.05, Prompt(token_ids=[i + 1]), 1, 1 if i % 2 else 100_000)
         for i in range(10_000)]
workload = Workload(tuple(asked), 500.0, 0, "", {})
plan = ClientPlan(Target(sys.argv[1]), probe_rps=None, sample_interval_s=None)
run = run_load(workload, plan, Watch())
print(json.dumps({
    "is_interrupted": run.is_interrupted,
    "endings": sorted({str(seen.ending) for seen in run.observed}),
    "errors": sorted({str(seen.error) for seen in run.observed}),
    "offered": len(run.observed),
    "window_s": run.window_s,
    "duration_s": run.duration_s,
}))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_run_and_what_was_measured_is_kept(stub: Any, number: int) -> None:
    with stub(chunk_interval_s=0.05) as server:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, server.url], stdout=subprocess.PIPE, text=True
        )
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "measuring\n"
            process.send_signal(number)
            said, _ = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
            process.wait()

    told = json.loads(said.splitlines()[-1])
    assert process.returncode == 0
    assert told["is_interrupted"]
    assert told["endings"] == ["finished", "unfinished"]
    assert told["errors"] == ["None", "interrupted"]
    assert 3 <= told["offered"] < 10_000
    assert 0 < told["window_s"] <= told["duration_s"] < 500


def test_the_first_signal_stops_and_the_second_raises() -> None:
    stops: list[int] = []
    before = signal.getsignal(signal.SIGTERM)

    async def run() -> None:
        with stopped_by_signals(lambda: stops.append(1)):
            os.kill(os.getpid(), signal.SIGTERM)
            while not stops:
                await asyncio.sleep(0.01)
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(PATIENCE_S)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(run())
    assert stops == [1]
    assert signal.getsignal(signal.SIGTERM) is before


def test_whoever_answered_signals_before_does_so_again() -> None:
    def own(number: int, frame: Any) -> None:
        raise AssertionError(number, frame)

    before = signal.signal(signal.SIGTERM, own)
    try:

        async def run() -> None:
            with stopped_by_signals(lambda: None):
                assert signal.getsignal(signal.SIGTERM) is not own

        asyncio.run(run())
        assert signal.getsignal(signal.SIGTERM) is own
    finally:
        signal.signal(signal.SIGTERM, before)
