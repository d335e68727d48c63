"""Reports keep coming while the scheduler does nothing, and end when told to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import zmq

from bana.slo.wire import EngineProof, LoadReport, decode_load
from sglang_bana.config import EngineConfig, InstanceSpec
from sglang_bana.engine.load_report import LoadReporter
from sglang_bana.engine.load_watch import Load

PROOF = EngineProof(
    pid=os.getpid(),
    scheduler_class="a.B",
    attention_backend="c",
    platform="d.E",
    device="cpu",
    sglang_version="0.5.23",
    tp_size=1,
    page_size=16,
)
DEADLINE_MS = 60_000


@pytest.fixture
def spec(tmp_path: Path) -> InstanceSpec:
    return InstanceSpec(
        name="i0",
        engine=EngineConfig(report_interval_s=0.01),
        secret="s",
        load_endpoint=f"ipc://{tmp_path}/l",
        parent_pid=os.getpid(),
        run_dir=str(tmp_path),
    )


@pytest.fixture
def subscriber(spec: InstanceSpec) -> Iterator[zmq.Socket[bytes]]:
    with zmq.Context() as context, context.socket(zmq.SUB) as socket:
        socket.set(zmq.SUBSCRIBE, b"")
        socket.set(zmq.RCVTIMEO, DEADLINE_MS)
        socket.connect(spec.load_endpoint)
        yield socket


def read_until(socket: zmq.Socket[bytes], used_tokens: int) -> LoadReport:
    for _ in range(100_000):
        report = decode_load(socket.recv())
        if report.used_tokens == used_tokens:
            return report
    raise AssertionError(f"no report of {used_tokens} used tokens")


def test_reports_repeat_what_is_known_and_follow_what_is_new(
    spec: InstanceSpec, subscriber: zmq.Socket[bytes]
) -> None:
    watch: Any = SimpleNamespace(newest=Load(pass_s=1.0, used_tokens=7), capacity_tokens=64)
    reporter = LoadReporter(spec, watch, PROOF, lambda: None, lambda: None)
    reporter.start()
    try:
        first, second = read_until(subscriber, 7), read_until(subscriber, 7)
        watch.newest = Load(pass_s=2.0, used_tokens=8)
        third = read_until(subscriber, 8)
    finally:
        reporter.stop()

    assert (first.instance, first.proof, first.capacity_tokens) == ("i0", PROOF, 64)
    assert first.sequence < second.sequence < third.sequence
    assert first.time_s < second.time_s < third.time_s
    assert first.epoch == second.epoch == third.epoch
    assert (first.last_pass_s, second.last_pass_s, third.last_pass_s) == (1.0, 1.0, 2.0)


def test_nothing_is_sent_after_the_end(spec: InstanceSpec, subscriber: zmq.Socket[bytes]) -> None:
    watch: Any = SimpleNamespace(newest=Load(pass_s=1.0, used_tokens=7), capacity_tokens=64)
    reporter = LoadReporter(spec, watch, PROOF, lambda: None, lambda: None)
    reporter.start()
    read_until(subscriber, 7)
    reporter.stop()

    subscriber.set(zmq.RCVTIMEO, 300)
    with pytest.raises(zmq.Again):
        read_until(subscriber, 9)


def test_an_endpoint_that_cannot_be_bound_is_an_error_and_leaves_nothing(
    tmp_path: Path, spec: InstanceSpec
) -> None:
    watch: Any = SimpleNamespace(newest=Load(pass_s=1.0), capacity_tokens=64)
    blocked = tmp_path / "l"
    blocked.mkdir()
    reporter = LoadReporter(spec, watch, PROOF, lambda: None, lambda: None)

    with pytest.raises(zmq.ZMQError):
        reporter.start()
    reporter.stop()
