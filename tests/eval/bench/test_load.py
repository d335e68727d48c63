from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from bana.eval.bench.closed import ClosedLoad, run_closed
from bana.eval.bench.errors import BenchError
from bana.eval.bench.load import LoadPoint, Streams, plan_arrivals, run_point
from bana.eval.bench.placement import Placement
from bana.eval.bench.router_points import PATH, build_sender
from bana.eval.bench.routers import null_upstreams
from bana.eval.client.target import Target

STREAMS = Streams(count=10, chunks_per_s=10.0, opened_per_s=100.0)


@pytest.fixture(scope="module")
def upstreams(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Target, ...]]:

    cores = frozenset(os.sched_getaffinity(0))
    folder: Path = tmp_path_factory.mktemp("upstreams")
    with null_upstreams(2, 10.0, Placement(cores, cores, cores), folder) as targets:
        yield targets


def test_every_request_and_every_chunk_is_accounted_for(upstreams: tuple[Target, ...]) -> None:
    point = LoadPoint(50.0, 1.0, STREAMS, seed=3, max_outstanding=1_000)

    result = run_point(build_sender(upstreams), point)

    assert result.offered == len(plan_arrivals(50.0, 1.0, Random(3)))
    assert (result.failed, result.is_cut, result.first_error) == (0, False, None)
    assert result.chunks_got == result.chunks_asked > 0
    assert result.streams_failed == 0
    assert 0 < result.first_byte_p50_s <= result.latency_p99_s


def test_refused_requests_are_failures_with_their_reason(upstreams: tuple[Target, ...]) -> None:
    del upstreams
    point = LoadPoint(20.0, 0.5, Streams(0, 1.0, 100.0), seed=0, max_outstanding=1_000)

    result = run_point(build_sender([Target("http://127.0.0.1:9")]), point)

    assert result.failed == result.offered > 0
    assert result.latency_p99_s == float("inf")
    assert "cannot connect" in (result.first_error or "")


def test_a_point_is_cut_off_when_too_much_is_out(upstreams: tuple[Target, ...]) -> None:
    point = LoadPoint(200.0, 1.0, Streams(0, 1.0, 100.0), seed=0, max_outstanding=-1)

    assert run_point(build_sender(upstreams), point).is_cut


def test_arrivals_follow_the_seed_and_the_rate() -> None:
    times = plan_arrivals(200.0, 50.0, Random(1))

    assert times == plan_arrivals(200.0, 50.0, Random(1)) != plan_arrivals(200.0, 50.0, Random(2))
    assert times == sorted(times)
    assert times[-1] < 50.0
    assert 9_000 < len(times) < 11_000


def test_closed_load_answers_all(upstreams: tuple[Target, ...]) -> None:
    # The first ones end last, and still their answers come first.
    chunks = [9, 7, 5, 3, 3, 3, 2, 2, 1]
    bodies = [{"stream": True, "max_tokens": count} for count in chunks]

    result = run_closed(upstreams[0], ClosedLoad(PATH, bodies, 4, 60.0))

    assert [exchange.events for exchange in result.exchanges] == chunks
    sent = [exchange.due_s for exchange in result.exchanges]
    assert sent == sorted(sent)
    assert result.wall_s > 0


def test_closed_load_that_fails_or_stalls_is_invalid(upstreams: tuple[Target, ...]) -> None:
    endless = {"stream": True, "max_tokens": 1_000}
    with pytest.raises(BenchError, match="not over within"):
        run_closed(upstreams[0], ClosedLoad(PATH, [endless], 1, 0.5))
    with pytest.raises(BenchError, match="cannot connect"):
        run_closed(Target("http://127.0.0.1:9"), ClosedLoad(PATH, [endless], 1, 30.0))
