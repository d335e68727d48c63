"""Sending one request to an instance and its answer back, with at most one retry elsewhere.

choose ──▶ send ──▶ first byte ──▶ rest ──▶ done
  ▲          │          │            └── broken: error event, or the connection is cut
  └── retry ─┴──────────┘  once, while the client has seen nothing and slack remains
"""

from __future__ import annotations

import asyncio
import time

import aiohttp

from bana.slo.load import LoadLedger
from sglang_bana.router.abort import AbortQueue
from sglang_bana.router.call import Attempt, Call, Promise, choose_rid
from sglang_bana.router.delivery import EVENT_STREAM, Delivery
from sglang_bana.router.dispatch import Dispatcher
from sglang_bana.router.endpoints import TELLS_SECRETS
from sglang_bana.router.errors import ApiError, body_of, normalise_error
from sglang_bana.router.flights import Cut, Flight, retry_headers
from sglang_bana.router.instances import Instance, InstanceBoard
from sglang_bana.router.losses import Loss, Lost, StreamCut, explain_failure, judge_losses
from sglang_bana.router.metrics import RouterMetrics
from sglang_bana.router.redact import redact_info
from sglang_bana.router.upstream import Upstream, is_refusal, read_up_to
from sglang_bana.status import InstanceState

WHOLE_BYTES = 2**20
RETRY_PATIENCE_S = 5.0
RETRY_POLL_S = 0.05
MAX_ERROR_BYTES = 2**20
MAX_INFO_BYTES = 64 * 2**20


class Relay:
    """Carries requests to instances and answers back."""

    def __init__(
        self,
        board: InstanceBoard,
        dispatcher: Dispatcher,
        ledger: LoadLedger,
        upstream: Upstream,
        aborts: AbortQueue,
        metrics: RouterMetrics,
    ) -> None:
        self._board = board
        self._dispatcher = dispatcher
        self._ledger = ledger
        self._upstream = upstream
        self._aborts = aborts
        self._metrics = metrics
        self._promise = Promise.of_this_host()

    async def relay(self, flight: Flight, call: Call, delivery: Delivery) -> None:
        """Answer `flight`; ApiError while nothing was sent, errors in the stream after that."""
        losses: list[Loss] = []
        excluded: set[str] = set()
        while True:
            instance = await self._wait_choice(flight, call, excluded)
            flight.attempts += 1
            try:
                await self._attempt(flight, call, instance, delivery)
                return
            except Lost as lost:
                losses.append(lost.loss)
                excluded.add(instance.name)
                # Nobody else can answer for the owner of a session.
                is_final = call.owner is not None
                slack_s = 0.0 if is_final else flight.retry_by_s - time.monotonic()
                judge_losses(losses, slack_s)
            self._metrics.retries.labels(losses[-1]).inc()

    async def _wait_choice(self, flight: Flight, call: Call, excluded: set[str]) -> Instance:
        """The next instance; a retry waits a moment for another one to come up."""
        others = [i for i in self._board.all() if i.name not in excluded]
        patience_s = RETRY_PATIENCE_S if excluded and others else 0.0
        end_s = min(time.monotonic() + patience_s, flight.retry_by_s)
        while True:
            try:
                return self._choose(flight, call, excluded)
            except ApiError as error:
                is_over = time.monotonic() >= end_s or flight.cut is Cut.DRAIN
                if error.code != "no_instance" or is_over:
                    raise
            await asyncio.sleep(RETRY_POLL_S)

    def _choose(self, flight: Flight, call: Call, excluded: set[str]) -> Instance:
        if call.owner is not None:
            if call.owner.state is InstanceState.UP:
                return call.owner
            raise ApiError(
                503,
                "owner_unavailable",
                f"instance {call.owner.name}, which holds the session or response, is "
                f"{call.owner.state}; try again later",
                headers=retry_headers(1.0),
            )
        friend = call.friend
        if friend is not None and friend.state is InstanceState.UP and friend.name not in excluded:
            return friend
        slo_class = "" if flight.slo is None else flight.slo.slo_class
        return self._dispatcher.choose(
            call.shape, call.prompt, slo_class, excluded, time.monotonic()
        )

    async def _attempt(
        self, flight: Flight, call: Call, instance: Instance, delivery: Delivery
    ) -> None:
        attempt = self._depart(flight, call, instance)
        sent_s = flight.touched_s
        is_complete = False
        try:
            async with asyncio.timeout(None) as scope:
                flight.scope = scope
                try:
                    await self._exchange(flight, attempt, instance, delivery)
                finally:
                    flight.scope = None
            is_complete = True
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            await self._mourn(flight, instance, delivery, error)
        finally:
            self._ledger.remove_dispatch(attempt.rid)
            if not is_complete:
                self._aborts.send(instance, attempt.rids, time.monotonic() - sent_s)

    def _depart(self, flight: Flight, call: Call, instance: Instance) -> Attempt:
        now_s = time.monotonic()
        params: dict[str, object] = {}
        headers: dict[str, str] = {}
        if flight.slo is not None:
            params = self._promise.params(flight.slo, flight.arrival_s, now_s, instance)
            headers = self._promise.headers(flight.slo, flight.arrival_s, now_s, instance)
        attempt = Attempt(call, choose_rid(flight, instance), params, headers)
        flight.rid, flight.rids = attempt.rid, attempt.rids
        flight.instance, flight.touched_s = instance.name, now_s
        if flight.cut in (Cut.MOVED, Cut.CRASHED):
            flight.cut = None
        instance.dispatched_total += 1
        self._ledger.add_dispatch(attempt.rid, instance.name, call.shape.prompt_tokens, now_s)
        return attempt

    async def _exchange(
        self, flight: Flight, attempt: Attempt, instance: Instance, delivery: Delivery
    ) -> None:
        if flight.cut is not None:
            raise TimeoutError
        delivery.headers["x-bana-instance"] = instance.name
        delivery.headers["x-bana-rid"] = attempt.rid
        response = await self._upstream.send(instance, attempt.message)
        try:
            is_events = response.content_type == EVENT_STREAM
            if response.status >= 400:
                await self._deliver_error(flight, response, delivery)
            elif flight.endpoint.path in TELLS_SECRETS:
                await self._deliver_info(flight, instance, response, delivery)
            elif response.content_length is not None and not is_events:
                await self._deliver_whole(flight, response, delivery)
            else:
                await self._deliver_stream(flight, response, b"", delivery)
        except BaseException:
            response.close()
            raise
        response.release()

    async def _deliver_error(
        self, flight: Flight, response: aiohttp.ClientResponse, delivery: Delivery
    ) -> None:
        body = await read_up_to(response, MAX_ERROR_BYTES)
        self._mark_answered(flight)
        if response.status in (401, 403):
            raise ApiError(
                502,
                "instance_refused_key",
                f"the instance refused the key of this front door ({response.status}); check the "
                "key of the attached server",
                headers={"x-should-retry": "false"},
            )
        error = normalise_error(response.status, response.content_type, body)
        kept = {k: v for k, v in response.headers.items() if k.lower() == "retry-after"}
        delivery.answer_error(response.status, error, kept)

    async def _deliver_info(
        self,
        flight: Flight,
        instance: Instance,
        response: aiohttp.ClientResponse,
        delivery: Delivery,
    ) -> None:
        """Whole, however it comes: secrets are taken out before the client sees anything."""
        body = await read_up_to(response, MAX_INFO_BYTES)
        self._mark_answered(flight)
        told = redact_info(body, instance.spec.secret)
        delivery.answer_whole(response.status, {"Content-Type": "application/json"}, told)

    async def _deliver_whole(
        self, flight: Flight, response: aiohttp.ClientResponse, delivery: Delivery
    ) -> None:
        body = await read_up_to(response, WHOLE_BYTES)
        if response.content.at_eof():
            self._mark_answered(flight)
            delivery.answer_whole(response.status, response.headers, body)
            return
        await self._deliver_stream(flight, response, body, delivery)

    async def _deliver_stream(
        self,
        flight: Flight,
        response: aiohttp.ClientResponse,
        begun: bytes,
        delivery: Delivery,
    ) -> None:
        chunk = begun or await response.content.readany()
        self._mark_answered(flight)
        if response.content_type == EVENT_STREAM:
            flight.is_in_time = flight.touched_s <= flight.deadline_s
        await delivery.begin(response.status, response.headers)
        while chunk:
            flight.touched_s = time.monotonic()
            await delivery.write(chunk)
            chunk = await response.content.readany()
        await delivery.finish()

    def _mark_answered(self, flight: Flight) -> None:
        now_s = time.monotonic()
        flight.answered_s = flight.touched_s = now_s
        self._ledger.mark_answered(flight.rid)
        if flight.slo is not None:
            seconds = now_s - flight.arrival_s
            self._metrics.first_byte.labels(flight.slo.slo_class).observe(seconds)

    async def _mourn(
        self, flight: Flight, instance: Instance, delivery: Delivery, error: Exception
    ) -> None:
        """Turn a failed attempt into a retry, an answer, or the end of a stream."""
        failure = explain_failure(flight, instance, error)
        if flight.cut is None and is_refusal(error):
            self._board.observe_refusal(instance)
        if not delivery.is_started:
            delivery.response = None
            flight.answered_s = None
            raise failure from error
        if isinstance(failure, Lost):
            failure = ApiError(
                502, "instance_lost", f"instance {instance.name} was lost while it answered"
            )
        await delivery.fail(body_of(failure))
        raise StreamCut(failure.code)
