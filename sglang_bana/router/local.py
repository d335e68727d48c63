"""What the front door answers itself: probes, metrics, status, loads, aborts and draining."""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from importlib.metadata import version

import msgspec
from aiohttp import web

from bana.slo.errors import ConfigError, describe_unknown
from bana.slo.load import LoadLedger
from bana.slo.roles import Role
from sglang_bana.config import LimitsConfig
from sglang_bana.router.abort import AbortQueue
from sglang_bana.router.delivery import Delivery
from sglang_bana.router.dispatch import Dispatcher
from sglang_bana.router.endpoints import Access
from sglang_bana.router.errors import ApiError
from sglang_bana.router.flights import Cut, Flight, FlightBoard
from sglang_bana.router.handoff import Handoffs
from sglang_bana.router.health import BANA_HEADER
from sglang_bana.router.instances import InstanceBoard
from sglang_bana.router.intake import read_body
from sglang_bana.router.keys import Grant, Keyring
from sglang_bana.router.metrics import RouterMetrics
from sglang_bana.router.roles import Roles
from sglang_bana.router.store_feed import StoreFeed
from sglang_bana.status import FrontDoorStatus, InstanceState, InstanceStatus

VERSION = version("bana")
_TEXT = {"Content-Type": "text/plain; charset=utf-8", BANA_HEADER: VERSION}
_JSON = {"Content-Type": "application/json"}


class AbortBody(msgspec.Struct):
    """The body of `/abort_request`, as SGLang takes it."""

    rid: str = ""
    abort_all: bool = False


class RoleWishes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `/bana/roles`, before anybody knows whether there are such roles."""

    roles: dict[str, str]


class Ledgers(msgspec.Struct, frozen=True):
    """The books that local answers read."""

    board: InstanceBoard
    flights: FlightBoard
    loads: LoadLedger
    keyring: Keyring
    dispatcher: Dispatcher
    metrics: RouterMetrics
    store: StoreFeed
    roles: Roles
    handoffs: Handoffs | None


Answer = Callable[[web.BaseRequest, Grant, Delivery], Awaitable[None]]


class LocalAnswers:
    """The answers by path. Probes are O(1) and touch no instance.

    `is_draining`: no new work is taken; `is_ending`: nor ever again, because the process ends.
    """

    def __init__(self, books: Ledgers, aborts: AbortQueue, limits: LimitsConfig) -> None:
        self._books = books
        self._aborts = aborts
        self._limits = limits
        self._started_s = time.monotonic()
        self.is_draining = self.is_ending = False
        self._answers: dict[str, Answer] = {
            "/livez": self._answer_alive,
            "/": self._answer_alive,
            "/metrics": self._answer_metrics,
            "/v1/loads": self._answer_loads,
            "/abort_request": self._answer_abort,
            "/bana/status": self._answer_status,
            "/bana/drain": self._answer_drain,
            "/bana/roles": self._answer_roles,
        }

    @property
    def is_ready(self) -> bool:
        """Whether new work is taken: not draining, and some instance is up and lets us in."""
        return not self.is_draining and any(
            i.state is InstanceState.UP and not i.is_denied for i in self._books.board.all()
        )

    async def answer(self, request: web.BaseRequest, flight: Flight, delivery: Delivery) -> None:
        """Answer one of the paths; readiness is the answer of all other probes."""
        found = self._answers.get(flight.endpoint.path, self._answer_ready)
        await found(request, flight.grant, delivery)

    def status(self) -> FrontDoorStatus:
        """What `/bana/status` tells."""
        books = self._books
        faults = (books.keyring.fault, books.dispatcher.fault)
        denials = (
            f"{i.name} ({i.spec.url}): {i.trouble}" for i in books.board.all() if i.is_denied
        )
        return FrontDoorStatus(
            version=VERSION,
            pid=os.getpid(),
            uptime_s=time.monotonic() - self._started_s,
            is_ready=self.is_ready,
            is_draining=self.is_draining,
            in_flight=len(books.flights),
            waiting=books.flights.count_waiting(),
            max_requests=self._limits.max_requests,
            routing_policy=books.dispatcher.policy_name,
            instances=self.statuses(),
            store=books.store.status(),
            handoff=None if books.handoffs is None else books.handoffs.status(),
            warnings=(
                *(fault for fault in faults if fault is not None),
                *denials,
                *books.roles.warnings(),
            ),
        )

    def statuses(self) -> tuple[InstanceStatus, ...]:
        """Each instance: belief beside truth."""
        instances = self._books.board.all()
        loads = self._books.loads.loads(i.name for i in instances)
        counts = self._books.flights.count_by_instance()
        now_s = time.monotonic()
        found = []
        for instance in instances:
            report, load = self._books.loads.report_of(instance.name), loads[instance.name]
            found.append(
                InstanceStatus(
                    name=instance.name,
                    url=instance.spec.url,
                    state=instance.state,
                    silent_s=instance.silent_s(now_s),
                    in_flight=counts.get(instance.name, 0),
                    prefill_tokens=load.prefill_tokens,
                    decode_requests=load.decode_requests,
                    waiting_requests=load.waiting_requests,
                    dispatched_total=instance.dispatched_total,
                    failures_total=instance.failures_total,
                    engine_running_requests=None if report is None else report.running_requests,
                    engine_waiting_requests=None if report is None else report.waiting_requests,
                    used_tokens=None if report is None else report.used_tokens,
                    capacity_tokens=None if report is None else report.capacity_tokens,
                    proof=None if report is None else report.proof,
                    scheduling=None if report is None else report.scheduling,
                    link=None if report is None else report.store,
                    trouble=instance.trouble or None,
                    role=self._books.roles.of(instance),
                )
            )
        return tuple(found)

    async def _answer_alive(self, _: web.BaseRequest, __: Grant, delivery: Delivery) -> None:
        delivery.answer_whole(200, _TEXT, b"bana is running\n")

    async def _answer_ready(self, _: web.BaseRequest, __: Grant, delivery: Delivery) -> None:
        if self.is_ready:
            delivery.answer_whole(200, _TEXT, b"ready\n")
            return
        code = "draining" if self.is_draining else "no_instance"
        delivery.answer_refusal(
            ApiError(503, code, f"not ready: {code}", headers={BANA_HEADER: VERSION})
        )

    async def _answer_metrics(self, _: web.BaseRequest, __: Grant, delivery: Delivery) -> None:
        metrics = self._books.metrics
        metrics.in_flight.set(len(self._books.flights))
        metrics.waiting.set(self._books.flights.count_waiting())
        metrics.draining.set(float(self.is_draining))
        headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        delivery.answer_whole(
            200, headers, metrics.render(self.statuses(), self._books.store.status())
        )

    async def _answer_loads(self, _: web.BaseRequest, __: Grant, delivery: Delivery) -> None:
        """SGLang's shape, with one record an instance in place of one a rank."""
        loads = [
            {
                "dp_rank": place,
                "num_running_reqs": status.engine_running_requests or 0,
                "num_waiting_reqs": status.waiting_requests,
                "num_waiting_uncached_tokens": status.prefill_tokens,
                "num_total_reqs": status.in_flight,
                "num_used_tokens": status.used_tokens or 0,
                "max_total_num_tokens": status.capacity_tokens or 0,
            }
            for place, status in enumerate(self.statuses())
        ]
        content = {
            "timestamp": datetime.datetime.now(datetime.UTC).isoformat(),
            "version": VERSION,
            "loads": loads,
        }
        delivery.answer_whole(200, _JSON, msgspec.json.encode(content))

    async def _answer_abort(
        self, request: web.BaseRequest, grant: Grant, delivery: Delivery
    ) -> None:
        """Abort the caller's own requests by request id, own rid or engine rid, exactly."""
        raw = await read_body(request, self._limits)
        try:
            body = msgspec.json.decode(raw, type=AbortBody)
        except msgspec.DecodeError as error:
            raise ApiError(400, "invalid_json", f"the body cannot be used: {error}") from error
        if body.abort_all:
            self._books.keyring.authorise(grant, Access.ADMIN)
        for flight in self._books.flights:
            is_own = flight.grant.name == grant.name or Access.ADMIN in grant.access
            names = (flight.request_id, flight.client_rid, flight.rid)
            if not is_own or not (body.abort_all or body.rid in names):
                continue
            if flight.is_waiting:
                flight.cut_loose(Cut.ABORTED)
            instance = self._books.board.find(flight.instance)
            if instance is not None:
                self._aborts.send(instance, flight.rids, time.monotonic() - flight.touched_s)
        delivery.answer_whole(200, _JSON, b"{}")

    async def _answer_status(self, _: web.BaseRequest, __: Grant, delivery: Delivery) -> None:
        delivery.answer_whole(200, _JSON, msgspec.json.encode(self.status()))

    async def _answer_drain(self, request: web.BaseRequest, _: Grant, delivery: Delivery) -> None:
        """POST: take no new work; DELETE: take it again. The process stays, unless it ends."""
        self.is_draining = request.method == "POST" or self.is_ending
        delivery.answer_whole(200, _JSON, msgspec.json.encode(self.status()))

    async def _answer_roles(self, request: web.BaseRequest, _: Grant, delivery: Delivery) -> None:
        """Every instance's role, once those in the body are given, from the next decision on."""
        if request.method == "POST":
            wanted = _read_roles(await read_body(request, self._limits))
            try:
                self._books.roles.change(wanted)
            except ConfigError as error:
                raise ApiError(400, "invalid_request", str(error), "roles") from error
            except OSError as error:
                raise ApiError(
                    500,
                    "roles_unsaved",
                    f"the roles cannot be kept in the run directory ({error.strerror}), so none "
                    "was changed; make room there and try again",
                ) from error
        delivery.answer_whole(200, _JSON, msgspec.json.encode(self._books.roles.table()))


def _read_roles(body: bytes) -> Mapping[str, Role]:
    try:
        given = msgspec.json.decode(body, type=RoleWishes).roles
    except msgspec.DecodeError as error:
        raise ApiError(
            400,
            "invalid_json",
            f'the body cannot be used: {error}; send {{"roles": {{NAME: ROLE, …}}}}',
        ) from error
    known = [str(role) for role in Role]
    for name, role in given.items():
        if role not in known:
            what = f"role for {name!r}:"
            raise ApiError(400, "invalid_request", describe_unknown(what, role, known), "roles")
    return {name: Role(role) for name, role in given.items()}
