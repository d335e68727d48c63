"""The load reports that local instances publish, over ZMQ."""

from __future__ import annotations

import logging
import time

import msgspec
import zmq
import zmq.asyncio

from bana.slo.load import LoadLedger
from bana.slo.wire import decode_load
from sglang_bana.router.instances import InstanceBoard

MAX_QUEUED_REPORTS = 1000
MAX_REPORT_BYTES = 64 * 1024
_LOG = logging.getLogger(__name__)


class LoadFeed:
    """Subscribes to every local instance; a report is also its sign of life."""

    def __init__(self, board: InstanceBoard, ledger: LoadLedger) -> None:
        self._board = board
        self._ledger = ledger

    async def run(self) -> None:
        """Take reports until cancelled."""
        with zmq.asyncio.Context() as context, context.socket(zmq.SUB) as socket:
            socket.setsockopt(zmq.RCVHWM, MAX_QUEUED_REPORTS)
            socket.setsockopt(zmq.MAXMSGSIZE, MAX_REPORT_BYTES)
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.SUBSCRIBE, b"")
            for instance in self._board.all():
                if instance.spec.load_endpoint:
                    socket.connect(instance.spec.load_endpoint)
            while True:
                self._take(await socket.recv())

    def _take(self, message: bytes) -> None:
        try:
            report = decode_load(message)
        except msgspec.MsgspecError as error:
            _LOG.warning("a load report could not be read and is left out: %s", error)
            return
        instance = self._board.find(report.instance)
        if instance is not None:
            self._board.observe_report(instance, time.monotonic())
            self._ledger.add_report(report)
