"""Publishes an instance's load, also while its scheduler is idle or inside a long step."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import zmq

from bana.slo.wire import EngineProof, LinkReport, LoadReport, SchedulingReport, encode_load
from sglang_bana.config import InstanceSpec
from sglang_bana.engine.load_watch import LoadWatch


class LoadReporter:
    """A thread that sends the watch's newest load every `report_interval_s`.

    A subscriber that does not keep up loses the oldest reports, never the sender's time. The
    thread stops with the process, or at `stop`.
    """

    def __init__(
        self,
        spec: InstanceSpec,
        watch: LoadWatch,
        proof: EngineProof,
        report_scheduling: Callable[[], SchedulingReport | None],
        report_store: Callable[[], LinkReport | None],
    ) -> None:
        self._spec = spec
        self._watch = watch
        self._proof = proof
        self._report_scheduling = report_scheduling
        self._report_store = report_store
        self._epoch = time.time_ns()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._publish, name="bana-load", daemon=True)
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PUB)

    def start(self) -> None:
        """Bind and begin; zmq.ZMQError when the endpoint cannot be bound."""
        self._socket.set(zmq.SNDHWM, 64)
        self._socket.set(zmq.LINGER, 0)
        self._socket.bind(self._spec.load_endpoint)
        self._thread.start()

    def stop(self) -> None:
        """End the thread, if it began, and close the socket; returns within a report interval."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout=self._spec.engine.report_interval_s + 1.0)
        self._context.destroy(linger=0)

    def _publish(self) -> None:
        sequence = 0
        while not self._stopping.wait(self._spec.engine.report_interval_s):
            sequence += 1
            self._socket.send(encode_load(self._report(sequence)))

    def _report(self, sequence: int) -> LoadReport:
        load = self._watch.newest
        return LoadReport(
            instance=self._spec.name,
            epoch=self._epoch,
            sequence=sequence,
            time_s=time.monotonic(),
            last_pass_s=load.pass_s,
            running_requests=load.running_requests,
            waiting_requests=load.waiting_requests,
            waiting_uncached_tokens=load.waiting_uncached_tokens,
            prefilling_tokens=load.prefilling_tokens,
            used_tokens=load.used_tokens,
            capacity_tokens=self._watch.capacity_tokens,
            prefill_tokens_total=load.prefill_tokens_total,
            decode_tokens_total=load.decode_tokens_total,
            proof=self._proof,
            scheduling=self._report_scheduling(),
            store=self._report_store(),
        )
