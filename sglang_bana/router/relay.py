"""Sending one request to an instance and its answer back, with at most one retry elsewhere.

choose ──▶ send ──▶ first byte ──▶ rest ──▶ done
  ▲          │          │            └── broken: error event, or the connection is cut
  └── retry ─┴──────────┘  once, while the client has seen nothing and slack remains
"""

from __future__ import annotations

import asyncio
import time

import aiohttp

from bana.slo.handoff import Handoff
from sglang_bana.router.call import Attempt, Call, Promise, choose_rid
from sglang_bana.router.delivery import EVENT_STREAM, Delivery
from sglang_bana.router.early_refusal import RETRIED, read_refusal, read_retry_s
from sglang_bana.router.endpoints import TELLS_SECRETS
from sglang_bana.router.errors import ApiError, body_of, normalise_error
from sglang_bana.router.flights import Cut, Flight
from sglang_bana.router.handoff import Handoffs, Prefill
from sglang_bana.router.instances import Instance
from sglang_bana.router.losses import Lost, StreamCut, Trail, explain_failure, judge_losses
from sglang_bana.router.means import Means
from sglang_bana.router.redact import redact_info
from sglang_bana.router.retry import retry_headers
from sglang_bana.router.upstream import is_refusal, read_up_to

WHOLE_BYTES = 2**20
MAX_ERROR_BYTES = 2**20
MAX_INFO_BYTES = 64 * 2**20
PREFILL_HEADER = "x-bana-prefill-instance"
RETRY_HEADERS = frozenset({"retry-after", "retry-after-ms"})


class Relay:
    """Carries requests to instances and answers back."""

    def __init__(self, means: Means, handoffs: Handoffs | None, retry_after_s: float) -> None:
        self._board = means.places.board
        self._places = means.places
        self._ledger = means.ledger
        self._upstream = means.upstream
        self._aborts = means.aborts
        self._metrics = means.metrics
        self._handoffs = handoffs
        self._retry_after_s = retry_after_s
        self._promise = Promise.of_this_host()

    async def relay(self, flight: Flight, call: Call, delivery: Delivery) -> None:
        """Answer `flight`; ApiError while nothing was sent, errors in the stream after that."""
        trail = Trail()
        if call.owner is not None:
            # Nobody else can answer for the owner of a session.
            flight.retry_by_s = flight.arrival_s
        while True:
            instance = await self._places.take(flight, call, trail)
            flight.attempts += 1
            try:
                await self._attempt(flight, call, instance, delivery)
                return
            except Lost as lost:
                trail.note(lost.loss, instance)
                self._recall(flight)
                judge_losses(trail, flight.retry_by_s - time.monotonic())
            finally:
                self._places.free(flight)
            self._metrics.retries.labels(trail.losses[-1]).inc()

    def _recall(self, flight: Flight) -> None:
        """It is at no instance now; of what cut it, only the end of this process still counts."""
        flight.instance = ""
        if flight.cut in (Cut.MOVED, Cut.CRASHED):
            flight.cut = None

    async def _attempt(
        self, flight: Flight, call: Call, instance: Instance, delivery: Delivery
    ) -> None:
        handoffs = self._handoffs
        prefill = None if handoffs is None else handoffs.start(flight, call, instance)
        attempt = self._depart(flight, call, instance, prefill)
        _tell_place(delivery, instance, attempt, prefill)
        sent_s = flight.touched_s
        is_complete = False
        try:
            async with asyncio.timeout(None) as scope:
                flight.scope = scope
                try:
                    if prefill is not None:
                        await prefill.depart()
                    await self._exchange(flight, attempt, instance, delivery)
                finally:
                    flight.scope = None
            is_complete = True
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            await self._mourn(flight, instance, delivery, error)
        finally:
            self._ledger.remove_dispatch(attempt.rid)
            if prefill is not None:
                prefill.end()
            if not is_complete:
                self._aborts.send(instance, attempt.rids, time.monotonic() - sent_s)

    def _depart(
        self, flight: Flight, call: Call, instance: Instance, prefill: Prefill | None
    ) -> Attempt:
        part = None if prefill is None else Handoff.DECODE
        rid = choose_rid(flight, instance)
        attempt = self._promise.make_attempt(flight, call, instance, rid, part)
        flight.rid, flight.rids = rid, attempt.rids
        flight.instance, flight.touched_s = instance.name, time.monotonic()
        instance.dispatched_total += 1
        # A prompt is work where it is computed.
        prompt_tokens = call.shape.prompt_tokens if prefill is None else 0
        self._ledger.add_dispatch(rid, instance.name, prompt_tokens, flight.touched_s)
        return attempt

    async def _exchange(
        self, flight: Flight, attempt: Attempt, instance: Instance, delivery: Delivery
    ) -> None:
        if flight.cut is not None:
            raise TimeoutError
        response = await self._upstream.send(instance, attempt.message)
        self._board.observe_head(instance, time.monotonic())
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
        kept = {k: v for k, v in response.headers.items() if k.lower() in RETRY_HEADERS}
        if response.status in RETRIED and not kept:
            kept = retry_headers(read_retry_s(error.message) or self._retry_after_s)
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
            refusal = read_refusal(chunk)
            if refusal is not None:
                told = retry_headers(refusal.retry_after_s or self._retry_after_s)
                delivery.answer_error(refusal.status, refusal.error, told)
                return
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
        self._places.free(flight)
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


def _tell_place(
    delivery: Delivery, instance: Instance, attempt: Attempt, prefill: Prefill | None
) -> None:
    """Let the client know who answers, under which id, and who computes the prompt elsewhere."""
    delivery.headers["x-bana-instance"] = instance.name
    delivery.headers["x-bana-rid"] = attempt.rid
    delivery.headers.pop(PREFILL_HEADER, None)
    if prefill is not None:
        delivery.headers[PREFILL_HEADER] = prefill.instance.name
