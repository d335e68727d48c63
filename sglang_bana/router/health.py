"""Whether instances live: one probing task each, and a watch over all of them.

`/ready` of SGLang is a flag check that no scheduler sees. Attached servers, which publish no
load reports, are asked for `/v1/loads` as well.
"""

from __future__ import annotations

import asyncio
import errno
import os
import time

import aiohttp
import msgspec

from bana.slo.load import LoadLedger
from bana.slo.wire import LoadReport
from sglang_bana.config import SupervisorConfig
from sglang_bana.router.flights import FlightBoard
from sglang_bana.router.instances import Instance, InstanceBoard
from sglang_bana.router.upstream import Message, Upstream, is_refusal
from sglang_bana.status import InstanceState

EAGER_S = 0.2
CALM_S = 1.0
WATCH_S = 0.2
HELD_UP_S = 0.8
MAX_ANSWER_BYTES = 2**20
BANA_HEADER = "x-bana-version"
DENIED = (401, 403)
DENIAL = "it wants another key than it is given; put the right one into --upstream-key-file"
_READY = Message("GET", "/ready", {}, None)
_LOADS = Message("GET", "/v1/loads?include=core", {}, None)


class CoreLoad(msgspec.Struct, frozen=True):
    """The part of SGLang's load record that routing uses."""

    num_running_reqs: int = 0
    num_waiting_reqs: int = 0
    num_waiting_uncached_tokens: int = 0
    num_used_tokens: int = 0
    max_total_num_tokens: int = 0
    total_prefill_uncached_tokens: int = 0


class LoadsAnswer(msgspec.Struct, frozen=True):
    """The answer of `/v1/loads`: one record a data-parallel rank."""

    loads: tuple[CoreLoad, ...] = ()


class Health:
    """Probes instances and judges their silence."""

    def __init__(
        self,
        board: InstanceBoard,
        ledger: LoadLedger,
        flights: FlightBoard,
        upstream: Upstream,
        config: SupervisorConfig,
    ) -> None:
        self._board = board
        self._ledger = ledger
        self._flights = flights
        self._upstream = upstream
        self._timeout_s = max(1.0, config.suspect_after_s)
        # Several answers may be late before an instance counts as silent.
        self._calm_s = min(CALM_S, config.suspect_after_s / 4)
        self._sequence = 0

    async def run(self) -> None:
        """Probe and watch until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch())
            for instance in self._board.all():
                group.create_task(self._probe_for_ever(instance))

    async def _watch(self) -> None:
        last_s = time.monotonic()
        while True:
            await asyncio.sleep(WATCH_S)
            now_s = time.monotonic()
            held_up_s = now_s - last_s - WATCH_S
            last_s = now_s
            if held_up_s > HELD_UP_S:
                self._board.excuse_silence(held_up_s, now_s)
            self._board.judge_silence(now_s)
            self._empty_silent(now_s)
            self._flights.sweep(now_s)

    def _empty_silent(self, now_s: float) -> None:
        """With nobody else to go to, requests are better off waiting for a suspect to come back."""
        for silent in self._board.silent():
            if self._board.has_lively(now_s):
                self._flights.move_waiting(silent.name, now_s)

    async def _probe_for_ever(self, instance: Instance) -> None:
        while True:
            await self._probe(instance)
            instance.was_probed = True
            is_up = instance.state is InstanceState.UP
            await asyncio.sleep(self._calm_s if is_up else EAGER_S)

    async def _probe(self, instance: Instance) -> None:
        try:
            status, headers, _ = await self._upstream.ask(
                instance, _READY, self._timeout_s, MAX_ANSWER_BYTES
            )
            instance.is_bana = BANA_HEADER in headers
            self._board.observe_life(instance, time.monotonic())
            is_denied = not instance.spec.load_endpoint and await self._poll_loads(instance)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            # Silence is judged by the watch.
            instance.trouble = _explain(error, self._timeout_s)
            if is_refusal(error):
                self._board.observe_refusal(instance, instance.trouble)
            return
        now_s = time.monotonic()
        if is_denied:
            self._board.observe_denial(instance, now_s, DENIAL)
        elif status in (200, 404):
            # Servers without this path are ready once they answer.
            self._board.observe_ready(instance, now_s)
        else:
            self._board.observe_answer(instance, now_s, f"it answers /ready with {status}")

    async def _poll_loads(self, instance: Instance) -> bool:
        """Take an attached server's load into the ledger; whether it denies us that instead.

        Only that shows a wrong key before a client's request does: SGLang tells anybody `/ready`.
        """
        asked_s = time.monotonic()
        try:
            status, _, body = await self._upstream.ask(
                instance, _LOADS, self._timeout_s, MAX_ANSWER_BYTES
            )
            answer = msgspec.json.decode(body, type=LoadsAnswer) if status == 200 else None
        except (TimeoutError, msgspec.MsgspecError):
            status, answer = 0, None
        if answer is None:
            # What it told before is worth less with every second.
            self._ledger.drop_report(instance.name)
            return status in DENIED
        self._sequence += 1
        self._ledger.add_report(_report(instance, answer, asked_s, self._sequence))
        return False


def _explain(error: Exception, timeout_s: float) -> str:
    """Why a probe failed, for a line that a user reads while waiting."""
    if isinstance(error, TimeoutError):
        return f"no answer within {timeout_s:g} s"
    if isinstance(error, aiohttp.ClientConnectorError):
        error = error.os_error
    number = getattr(error, "errno", None)
    if isinstance(number, int) and number in errno.errorcode:
        return os.strerror(number)
    return f"{type(error).__name__}: {error}"


def _report(instance: Instance, answer: LoadsAnswer, asked_s: float, sequence: int) -> LoadReport:
    """An attached server's load in the form that local instances publish."""
    loads = answer.loads
    return LoadReport(
        instance=instance.name,
        epoch=0,
        sequence=sequence,
        time_s=asked_s,
        last_pass_s=asked_s,
        running_requests=sum(load.num_running_reqs for load in loads),
        waiting_requests=sum(load.num_waiting_reqs for load in loads),
        waiting_uncached_tokens=sum(load.num_waiting_uncached_tokens for load in loads),
        prefilling_tokens=0,
        used_tokens=sum(load.num_used_tokens for load in loads),
        capacity_tokens=sum(load.max_total_num_tokens for load in loads),
        prefill_tokens_total=sum(load.total_prefill_uncached_tokens for load in loads),
        decode_tokens_total=0,
    )
