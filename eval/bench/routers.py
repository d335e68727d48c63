"""What stands between client and upstreams in a router benchmark: bana, another router, nothing."""

from __future__ import annotations

import contextlib
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path

import msgspec

from bana.eval.bench.children import Child, ChildPlan, running
from bana.eval.bench.clusters import cluster, fetch
from bana.eval.bench.errors import BenchError
from bana.eval.bench.placement import Placement, take_free_port
from bana.eval.client.target import Target

START_TIMEOUT_S = 60.0
UPSTREAM_TIMEOUT_S = 20.0
PROBE_S = 0.5


class Side(StrEnum):
    """Through what the upstreams are reached."""

    BANA = "bana"
    SGLANG_ROUTER = "sglang_router"
    DIRECT = "direct"


class Stage(msgspec.Struct, frozen=True):
    """What every side of a comparison has in common; each side's own routing policy."""

    placement: Placement
    folder: Path
    bana_policy: str
    sglang_router_policy: str
    upstreams: tuple[Target, ...]


@contextlib.contextmanager
def null_upstreams(
    count: int, chunks_per_s: float, placement: Placement, folder: Path
) -> Iterator[tuple[Target, ...]]:
    """Null servers that stand for SGLang instances."""
    with contextlib.ExitStack() as stack:
        targets = []
        for index in range(count):
            port = take_free_port()
            command = [sys.executable, "-m", "bana.eval.null_server", "--port", str(port)]
            command += ["--chunks-per-s", str(chunks_per_s)]
            log = folder / f"upstream{index}.log"
            plan = ChildPlan(f"upstream {index}", command, placement.upstream, log)
            child = stack.enter_context(running(plan))
            child.wait_until(partial(_is_listening, port), UPSTREAM_TIMEOUT_S)
            targets.append(Target(f"http://127.0.0.1:{port}"))
        yield tuple(targets)


@contextlib.contextmanager
def opened(side: Side, stage: Stage) -> Iterator[tuple[Target, ...]]:
    """Where the load of `side` goes; what it takes runs for the length of the block."""
    if side is Side.DIRECT:
        yield stage.upstreams
        return
    start = _start_bana if side is Side.BANA else _start_sglang_router
    with start(stage) as (child, target):
        yield (target,)
        child.require_alive()


@contextlib.contextmanager
def _start_bana(stage: Stage) -> Iterator[tuple[Child, Target]]:
    words = [word for target in stage.upstreams for word in ("--upstream", target.url)]
    words += ["--set", f"routing.policy={stage.bana_policy}"]
    cores = stage.placement.server
    with cluster("bana", words, cores, stage.folder, START_TIMEOUT_S) as ready:
        yield ready.child, ready.front_door
        ready.require_undisturbed()


@contextlib.contextmanager
def _start_sglang_router(stage: Stage) -> Iterator[tuple[Child, Target]]:
    words = ("--policy", stage.sglang_router_policy)
    with sglang_router(words, stage.upstreams, stage.placement.server, stage.folder) as started:
        yield started


@contextlib.contextmanager
def sglang_router(
    words: Sequence[str], upstreams: Sequence[Target], cores: frozenset[int], folder: Path
) -> Iterator[tuple[Child, Target]]:
    """SGLang's own router with these flags before `upstreams`, which have one key or none."""
    key = upstreams[0].key
    target = Target(f"http://127.0.0.1:{take_free_port()}", key)
    command = [sys.executable, "-m", "sglang_router.launch_router", "--host", target.host]
    command += ["--port", str(target.port), "--prometheus-port", str(take_free_port())]
    # A line per request costs it a third of its rate: the baseline runs without them.
    command += [*words, "--log-level", "warn", "--worker-startup-check-interval", "1"]
    command += ["--api-key", key] if key else []
    command += ["--worker-urls", *(upstream.url for upstream in upstreams)]
    plan = ChildPlan("sglang-router", command, cores, folder / "sglang_router.log")
    with running(plan) as child:
        child.wait_until(lambda: _answers(target), START_TIMEOUT_S)
        yield child, target


def _answers(target: Target) -> bool:
    """Whether a request already passes through to an upstream."""
    body = {"model": "null", "messages": [{"role": "user", "content": "ready?"}], "max_tokens": 1}
    time.sleep(PROBE_S)
    try:
        fetch(target, "/v1/chat/completions", msgspec.json.encode(body))
    except BenchError:
        return False
    return True


def _is_listening(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.5):
        return True
    return False
