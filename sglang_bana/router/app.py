"""The front door: every client request comes in here and leaves with exactly one outcome."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from aiohttp import web

from bana.slo.load import LoadLedger
from sglang_bana.config import ROLES_NAME, FrontDoorSpec
from sglang_bana.router.abort import AbortQueue
from sglang_bana.router.broadcast import Broadcast
from sglang_bana.router.delivery import ClientGone, Delivery
from sglang_bana.router.dispatch import Dispatcher
from sglang_bana.router.endpoints import Endpoint, Kind, find_endpoint
from sglang_bana.router.errors import ApiError
from sglang_bana.router.flights import Cut, Flight, FlightBoard
from sglang_bana.router.handoff import Handoffs
from sglang_bana.router.health import Health
from sglang_bana.router.instances import Instance, InstanceBoard
from sglang_bana.router.intake import (
    REQUEST_ID_HEADER,
    Intake,
    forward_headers,
    read_body,
    read_request_id,
)
from sglang_bana.router.keys import Grant, Keyring
from sglang_bana.router.load_feed import LoadFeed
from sglang_bana.router.local import Ledgers, LocalAnswers
from sglang_bana.router.losses import StreamCut, explain_drain
from sglang_bana.router.means import Means
from sglang_bana.router.metrics import RouterMetrics
from sglang_bana.router.outcomes import is_rejected, judge_promise, name_outcome
from sglang_bana.router.places import Places
from sglang_bana.router.relay import Relay
from sglang_bana.router.retry import retry_headers
from sglang_bana.router.roles import Roles
from sglang_bana.router.slo_edge import echo_slo
from sglang_bana.router.sticky import StickyTable
from sglang_bana.router.store_feed import StoreFeed
from sglang_bana.router.upstream import Message, Upstream
from sglang_bana.status import InstanceState

KEYS_CHECK_S = 1.0
_LOG = logging.getLogger(__name__)
_UNKNOWN = Endpoint("unknown", (), Kind.REFUSED, reason="the front door knows no such path")

Answer = Callable[[web.BaseRequest, Flight, Delivery], Awaitable[None]]


class FrontDoor:
    """Everything behind one address. Build it inside a running event loop."""

    def __init__(self, spec: FrontDoorSpec, upstream: Upstream) -> None:
        config = spec.config
        rules = config.slo.rules()
        self._limits = config.limits
        self.metrics = RouterMetrics()
        self.board = InstanceBoard(spec.upstreams, config.supervisor.suspect_after_s)
        self.flights = FlightBoard(config.limits)
        ledger = LoadLedger()
        self._store = StoreFeed(spec.store_endpoint)
        self._dispatcher = Dispatcher(
            config.routing, self.board, ledger, self.metrics, self._store.report
        )
        self._keyring = Keyring(config.auth, spec.control_key, rules.classes)
        self._sticky = StickyTable(self.board, config.limits.sticky_entries)
        self._intake = Intake(config.limits, rules, self.board, self.flights, self._sticky)
        self._aborts = AbortQueue(self.board.all(), upstream, self.metrics)
        self._roles = Roles(self.board, Path(spec.run_dir) / ROLES_NAME)
        places = Places(self.board, self._roles, self._dispatcher, config.limits)
        means = Means(places, ledger, upstream, self._aborts, self.metrics)
        self._handoffs = self._build_handoffs(spec, means)
        self._relay = Relay(means, self._handoffs, config.limits.retry_after_s)
        self._broadcast = Broadcast(self.board, upstream, config.limits.first_byte_timeout_s)
        books = Ledgers(
            self.board,
            self.flights,
            ledger,
            self._keyring,
            self._dispatcher,
            self.metrics,
            self._store,
            self._roles,
            self._handoffs,
        )
        self.local = LocalAnswers(books, self._aborts, config.limits)
        self._health = Health(self.board, ledger, self.flights, upstream, config.supervisor)
        self._feed = LoadFeed(self.board, ledger)
        self._answers: dict[Kind, Answer] = {
            Kind.BALANCED: self._answer_relayed,
            Kind.STICKY: self._answer_relayed,
            Kind.BROADCAST: self._answer_broadcast,
            Kind.LOCAL: self._answer_locally,
            Kind.REFUSED: self._answer_refused,
        }
        self.board.listen(self._follow)
        for instance in self.board.all():
            self.metrics.set_state(instance)

    def _build_handoffs(self, spec: FrontDoorSpec, means: Means) -> Handoffs | None:
        """None where no prompt can be handed off, whatever roles the instances have."""
        config = spec.config.handoff
        if not config.enabled or not spec.store_endpoint:
            return None
        return Handoffs(config, means, self._roles, self._dispatcher, self._store)

    async def run(self) -> None:
        """The background work, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._health.run())
            group.create_task(self._feed.run())
            group.create_task(self._store.run())
            group.create_task(self._aborts.run())
            group.create_task(self._watch_keys())

    async def drain(self) -> None:
        """Take no new work, wait for what runs, then end the rest with a clear error."""
        self.local.is_ending = self.local.is_draining = True
        if await self.flights.wait_empty(self._limits.drain_timeout_s):
            return
        for flight in self.flights:
            flight.cut_loose(Cut.DRAIN)
        await self.flights.wait_empty(2.0)

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request, whatever happens."""
        delivery = Delivery(request)
        endpoint = find_endpoint(request.rel_url.raw_path) or _UNKNOWN
        flight = Flight("", endpoint, Grant(), now_s := time.monotonic(), now_s)
        outcome = "ok"
        try:
            outcome = await self._answer_checked(request, flight, delivery)
            await delivery.send(self._limits.stall_timeout_s)
        except asyncio.CancelledError:
            outcome = "disconnected"
            raise
        except ClientGone:
            outcome = "disconnected"
        except Exception:
            outcome = "internal_error"
            _LOG.exception("request %s failed", flight.request_id)
            self._refuse(
                ApiError(500, "internal_error", "the front door failed; see its log"),
                flight,
                delivery,
            )
        finally:
            self._account(request, flight, outcome)
        assert delivery.response is not None
        return delivery.response

    async def _answer_checked(
        self, request: web.BaseRequest, flight: Flight, delivery: Delivery
    ) -> str:
        try:
            flight.is_named = REQUEST_ID_HEADER in request.headers
            flight.request_id = read_request_id(request)
            delivery.headers[REQUEST_ID_HEADER] = flight.request_id
            self._admit(request, flight)
            await self._answers[flight.endpoint.kind](request, flight, delivery)
        except ApiError as error:
            self._refuse(error, flight, delivery)
            return error.code
        except StreamCut as cut:
            return cut.code
        except ClientGone:
            return "disconnected"
        return name_outcome(delivery.status)

    def _admit(self, request: web.BaseRequest, flight: Flight) -> None:
        endpoint = flight.endpoint
        headers = request.headers
        flight.grant = self._keyring.identify(
            headers.get("Authorization"), headers.get("x-api-key")
        )
        self._keyring.authorise(flight.grant, endpoint.access)
        if endpoint.methods and request.method not in endpoint.methods:
            allowed = ", ".join(endpoint.methods)
            raise ApiError(
                405,
                "method_not_allowed",
                f"{endpoint.path} does not take {request.method}; allowed: {allowed}",
                headers={"Allow": allowed},
            )

    def _refuse(self, error: ApiError, flight: Flight, delivery: Delivery) -> None:
        if delivery.is_started:
            return
        if flight.slo is not None:
            delivery.headers.update(echo_slo(flight.slo))
        delivery.answer_refusal(error)
        if error.code == "draining" and delivery.response is not None:
            delivery.response.force_close()

    async def _answer_relayed(
        self, request: web.BaseRequest, flight: Flight, delivery: Delivery
    ) -> None:
        if self.local.is_draining:
            raise self._turn_away()
        self.flights.admit(flight)
        delivery.headers[REQUEST_ID_HEADER] = flight.request_id
        try:
            call = await self._intake.read_call(request, flight)
            delivery.headers[REQUEST_ID_HEADER] = flight.request_id
            if flight.slo is not None:
                delivery.headers.update(echo_slo(flight.slo))
            await self._relay.relay(flight, call, delivery)
            # What was computed matters only where the next turn could be handed off.
            prompt = call.prompt if self._handoffs is not None and self._roles.is_mixed else b""
            for key in call.keys if delivery.status < 400 else ():
                self._sticky.remember(key, flight.instance, prompt)
            await delivery.send(self._limits.stall_timeout_s)
        finally:
            self.flights.close(flight)

    async def _answer_broadcast(
        self, request: web.BaseRequest, flight: Flight, delivery: Delivery
    ) -> None:
        # Draining on request is a time to administrate; the end of this process is none.
        if self.local.is_ending:
            raise self._turn_away()
        self.flights.admit(flight)
        delivery.headers[REQUEST_ID_HEADER] = flight.request_id
        try:
            headers = forward_headers(request.headers, flight.request_id)
            body = await read_body(request, self._limits)
            message = Message(request.method, request.rel_url.raw_path_qs, headers, body or None)
            await self._broadcast_until_cut(message, flight, delivery)
            await delivery.send(self._limits.stall_timeout_s)
        finally:
            self.flights.close(flight)

    async def _broadcast_until_cut(
        self, message: Message, flight: Flight, delivery: Delivery
    ) -> None:
        def note_done(instance: str) -> None:
            if flight.endpoint.empties_cache:
                self._dispatcher.forget_cache(instance)

        try:
            async with asyncio.timeout(None) as scope:
                flight.scope = scope
                try:
                    await self._broadcast.broadcast(message, delivery, note_done)
                finally:
                    flight.scope = None
        except TimeoutError:
            # Nothing but the drain cuts it: each instance has a time limit of its own.
            raise explain_drain() from None

    async def _answer_locally(
        self, request: web.BaseRequest, flight: Flight, delivery: Delivery
    ) -> None:
        await self.local.answer(request, flight, delivery)

    async def _answer_refused(self, request: web.BaseRequest, flight: Flight, _: Delivery) -> None:
        code = "path_unknown" if flight.endpoint is _UNKNOWN else "path_refused"
        raise ApiError(
            404, code, f"{request.path[:256]} is not served here: {flight.endpoint.reason}"
        )

    def _follow(self, instance: Instance, old: InstanceState) -> None:
        """An instance changed its state: forget what it held, once it is gone."""
        self.metrics.set_state(instance)
        _LOG.info("instance %s: %s -> %s", instance.name, old, instance.state)
        if instance.state is InstanceState.DOWN:
            self.flights.lose_waiting(instance.name)
            self._dispatcher.forget_instance(instance.name)

    def _turn_away(self) -> ApiError:
        return ApiError(
            503,
            "draining",
            "the server is shutting down and takes no new work; try another or try again later",
            headers=retry_headers(self._limits.retry_after_s),
        )

    def _account(self, request: web.BaseRequest, flight: Flight, outcome: str) -> None:
        slo_class = "" if flight.slo is None else flight.slo.slo_class
        if flight.endpoint.is_promised and flight.slo is None and is_rejected(flight, outcome):
            # A promise that was not even made is one that was not kept.
            slo_class = self._intake.foresee_class(request.headers, flight.grant)
        self.metrics.requests.labels(flight.endpoint.path, outcome, slo_class).inc()
        if _LOG.isEnabledFor(logging.DEBUG):
            took_s = time.monotonic() - flight.arrival_s
            where = (flight.request_id, flight.rid, flight.endpoint.path, flight.instance)
            _LOG.debug("request %s rid %s %s on %s: %s in %.3f s", *where, outcome, took_s)
        if slo_class:
            self.metrics.slo_outcomes.labels(slo_class, judge_promise(flight, outcome)).inc()

    async def _watch_keys(self) -> None:
        while True:
            await asyncio.sleep(KEYS_CHECK_S)
            if self._keyring.reload():
                _LOG.info("the keys file was read again")
