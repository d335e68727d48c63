"""What the client itself costs: the first seconds of a schedule against a null server.

A client that is late here would be late against any server; what it then measured would be itself.
"""

from __future__ import annotations

import contextlib
import math
import select
import subprocess
import sys
from collections.abc import Iterator

import msgspec
import numpy as np

from bana.eval.client.errors import LoadError
from bana.eval.client.plan import ClientPlan, Timeouts
from bana.eval.client.run import run_load
from bana.eval.client.target import Target
from bana.eval.client.validity import measure_lateness
from bana.eval.client.watch import Watch
from bana.eval.requests import Ending, LoadRun, Offered, Workload

REPLAYED_S = 3.0
# Streams are cut to what the null server sends before the test must be over.
CHUNKS_PER_S = 50.0
STREAM_S = 1.5
TIMEOUT_S = 3.0
START_TIMEOUT_S = 15.0
STOP_TIMEOUT_S = 5.0


class SelfTest(msgspec.Struct, frozen=True):
    """`is_fit`: nothing was lost and the p99 of lateness is within the plan's limit."""

    lateness_p99_s: float
    ttft_p99_s: float
    is_fit: bool
    requests: int
    lost: int


def run_self_test(workload: Workload, plan: ClientPlan, watch: Watch) -> SelfTest:
    """Replay the first REPLAYED_S of the schedule; some 5 s. KeyboardInterrupt when interrupted.

    Rate, prompts, endpoint and stream lengths are the workload's; nothing is cancelled.
    """
    with null_server(CHUNKS_PER_S) as target:
        own = msgspec.structs.replace(
            plan,
            target=target,
            timeouts=Timeouts(TIMEOUT_S, TIMEOUT_S, TIMEOUT_S, TIMEOUT_S, TIMEOUT_S),
            probe_rps=None,
            sample_interval_s=None,
            label="self-test",
        )
        run = run_load(cut_workload(workload), own, watch)
    if run.is_interrupted:
        raise KeyboardInterrupt
    return judge_self_test(run, plan.lateness_limit_s)


def cut_workload(workload: Workload) -> Workload:
    """The first seconds, with streams short enough to be over in time."""
    start_s = workload.requests[0].due_s if workload.requests else 0.0
    most = int(STREAM_S * CHUNKS_PER_S)

    def cut(offered: Offered) -> Offered:
        return msgspec.structs.replace(
            offered,
            due_s=offered.due_s - start_s,
            output_tokens=min(offered.output_tokens, most),
            cancel_after_s=None,
        )

    kept = tuple(cut(r) for r in workload.requests if r.due_s < start_s + REPLAYED_S)
    return msgspec.structs.replace(workload, requests=kept, window_s=REPLAYED_S)


def judge_self_test(run: LoadRun, lateness_limit_s: float) -> SelfTest:
    """What the run against the null server says about the client."""
    lateness_s = measure_lateness(run.observed)
    ttfts_s = [seen.first_s - seen.due_s for seen in run.observed if seen.first_s is not None]
    lost = sum(seen.ending is not Ending.FINISHED for seen in run.observed)
    late_s = math.inf if lateness_s is None else lateness_s
    return SelfTest(
        lateness_p99_s=late_s,
        ttft_p99_s=float(np.quantile(ttfts_s, 0.99, method="higher")) if ttfts_s else math.inf,
        is_fit=lost == 0 and late_s <= lateness_limit_s,
        requests=len(run.observed),
        lost=lost,
    )


@contextlib.contextmanager
def null_server(chunks_per_s: float) -> Iterator[Target]:
    """A null server in a process of its own, which ends with the block or with this process."""
    command = [sys.executable, "-m", "bana.eval.null_server", "--port", "0", "--tied"]
    command += ["--chunks-per-s", str(chunks_per_s)]
    # A terminal's Ctrl-C is ours to answer. Our end of the pipe is what the server lives by.
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            yield Target(f"http://127.0.0.1:{_read_port(process)}")
        finally:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _read_port(process: subprocess.Popen[bytes]) -> int:
    assert process.stdout is not None
    is_told, _, _ = select.select([process.stdout], [], [], START_TIMEOUT_S)
    line = process.stdout.readline() if is_told else b""
    if not line.strip().isdigit():
        raise LoadError(
            f"the null server of the self-test was not ready within {START_TIMEOUT_S:g} s; is "
            "this machine out of memory or processes?"
        )
    return int(line)
