"""The stub upstream itself: SGLang's paths without a model, with faults on demand."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Mapping

import msgspec
import zmq
import zmq.asyncio
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from bana.eval.stub_answers import (
    CHAT_PATH,
    Script,
    plan_script,
    render_events,
    render_refusal,
    render_role,
    render_usage,
    render_whole,
)
from bana.eval.stub_records import Fault, StubLog, StubRequest, StubSettings
from bana.slo.wire import EngineProof, LinkReport, LoadReport, encode_load

MAX_LOG = 100_000
MAX_BODY_BYTES = 256 * 2**20
DONE = b"data: [DONE]\n\n"
FOR_EVER_S = 86_400.0
PROBES = frozenset({"/health", "/ready"})


class _Broken(Exception):
    """A fault has ended this exchange."""


class _Refusal(msgspec.Struct, frozen=True):
    """An answer that is no success."""

    status: int
    body: object


class _Answering(msgspec.Struct, frozen=True):
    """One stream under way."""

    request: web.Request
    body: Mapping[str, object]
    script: Script
    arrived_s: float
    fault: Fault


_FULL = {"message": "the queue is full", "type": "rate_limit_error", "code": "queue_full"}
_LOST = {"message": "no instance", "type": "server_error", "code": "engine_unavailable"}
_FLAT = {"object": "error", "message": "too long", "type": "BadRequest", "code": 400, "param": None}
_REFUSALS = {
    Fault.FLAT_ERROR: _Refusal(400, _FLAT),
    Fault.REFUSE: _Refusal(429, {"error": _FULL}),
    Fault.UNAVAILABLE: _Refusal(503, {"error": _LOST}),
}


class StubServer:
    """One stub. `app()` gives the aiohttp application; `log` and `settings` are live.

    `is_muted` stops its load reports, as a scheduler that hangs would; `is_deaf` keeps probes
    waiting, as an HTTP server with too much to do would.
    """

    def __init__(self, settings: StubSettings) -> None:
        self.settings = settings
        self.log = StubLog()
        self.is_muted = self.is_deaf = False
        self._faults = 0
        self._started_ns = time.time_ns()

    def app(self) -> web.Application:
        """The application with every path that the front door may ask for."""
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[self._demand_secret()])
        generations = ("/generate", "/v1/completions", "/v1/chat/completions", "/v1/messages")
        for path in (*generations, "/v1/responses", "/api/chat", "/v1/embeddings", "/invocations"):
            app.router.add_post(path, self._generate)
        app.router.add_post("/abort_request", self._abort)
        app.router.add_get("/v1/models", self._list_models)
        app.router.add_get("/v1/loads", self._tell_loads)
        app.router.add_get("/server_info", self._tell_server)
        for path in ("/ready", "/health"):
            app.router.add_get(path, self._tell_ready)
        app.router.add_post("/stub/settings", self._change)
        app.router.add_get("/stub/log", self._tell_log)
        app.router.add_route("*", "/{path:.*}", self._echo)
        return app

    @property
    def is_report_wanted(self) -> bool:
        """Whether this stub publishes load reports."""
        return bool(self.settings.load_endpoint)

    async def publish(self) -> None:
        """Publish load reports as an instance does, until cancelled."""
        with zmq.asyncio.Context() as context, context.socket(zmq.PUB) as socket:
            socket.setsockopt(zmq.LINGER, 0)
            socket.bind(self.settings.load_endpoint)
            sequence = 0
            while True:
                sequence += 1
                if not self.is_muted:
                    await socket.send(encode_load(self._report(sequence)))
                await asyncio.sleep(self.settings.report_interval_s)

    def _demand_secret(self) -> Middleware:
        @web.middleware
        async def demand(request: web.Request, handler: Handler) -> web.StreamResponse:
            secret = self.settings.secret
            is_open = request.path in PROBES or request.path.startswith("/stub/")
            is_known = request.headers.get("Authorization") == f"Bearer {secret}"
            if secret and not is_open and not is_known:
                return web.json_response({"error": "Unauthorized"}, status=401)
            return await handler(request)

        return demand

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        body = msgspec.json.decode(raw)
        entry = self._note(request, body)
        fault = self._next_fault(raw)
        self.log.generating += 1
        try:
            answer = await self._answer(request, body, fault)
            entry.outcome = "ok"
        except _Broken:
            entry.outcome = "fault"
            if request.transport is not None:
                request.transport.abort()
            return web.Response()
        except (asyncio.CancelledError, ConnectionError):
            entry.outcome = "cancelled"
            raise
        finally:
            self.log.generating -= 1
        return answer

    async def _answer(
        self, request: web.Request, body: Mapping[str, object], fault: Fault
    ) -> web.StreamResponse:
        arrived_s = time.monotonic()
        await self._suffer_early(fault)
        refusal = _REFUSALS.get(fault)
        if refusal is not None:
            return web.json_response(refusal.body, status=refusal.status)
        script = plan_script(request.headers, body, self.settings)
        if body.get("stream") and fault is not Fault.NO_STREAM:
            answering = _Answering(request, body, script, arrived_s, fault)
            return await self._stream(answering)
        await _sleep_until(arrived_s + script.last_s)
        return web.json_response(render_whole(request.path, body, script, self.settings.name))

    async def _suffer_early(self, fault: Fault) -> None:
        if fault is Fault.CLOSE_EARLY:
            raise _Broken
        if fault is Fault.HANG:
            await asyncio.sleep(FOR_EVER_S)
        if fault is Fault.EXIT:
            os.kill(os.getpid(), signal.SIGKILL)

    async def _stream(self, answering: _Answering) -> web.StreamResponse:
        settings, request, script = self.settings, answering.request, answering.script
        body, arrived_s = answering.body, answering.arrived_s
        response = web.StreamResponse(headers={"Content-Type": settings.stream_type})
        await response.prepare(request)
        if answering.fault is Fault.REFUSE_IN_STREAM:
            await response.write(render_refusal(request.path) + DONE)
            await response.write_eof()
            return response
        if settings.has_role_event and request.path == CHAT_PATH:
            await response.write(render_role(body, settings.name))
        await _sleep_until(arrived_s + script.first_s)
        events = render_events(request.path, body, script, settings.name)
        for place, (due_s, event) in enumerate(zip(script.times_s(), events, strict=True)):
            if place:
                await _sleep_until(arrived_s + due_s)
                await self._suffer_midway(answering.fault, response)
            await response.write(event)
        ending = render_usage(request.path, body, script, settings.name) + DONE
        if answering.fault is not Fault.NO_DONE:
            await response.write(ending)
        await response.write_eof()
        return response

    async def _suffer_midway(self, fault: Fault, response: web.StreamResponse) -> None:
        if fault is Fault.CLOSE_MIDWAY:
            raise _Broken
        if fault is Fault.CUT_EVENT:
            await response.write(b'data: {"id": "cut in the mid')
            await asyncio.sleep(0.05)
            raise _Broken
        if fault is Fault.HANG_MIDWAY:
            await asyncio.sleep(FOR_EVER_S)
        if fault is Fault.GARBAGE:
            await response.write(b"\x00\xff not an event\n\n")
        if fault is Fault.ERROR_EVENT:
            await response.write(b"data: " + msgspec.json.encode({"error": _LOST}) + b"\n\n")

    async def _abort(self, request: web.Request) -> web.Response:
        body = await request.json()
        if len(self.log.aborts) < MAX_LOG:
            self.log.aborts.append(str(body.get("rid")))
        return web.Response()

    async def _list_models(self, request: web.Request) -> web.Response:
        self._note(request, None)
        model = {"id": "stub-model", "object": "model", "owned_by": self.settings.name}
        return web.json_response({"object": "list", "data": [model]})

    async def _tell_loads(self, _: web.Request) -> web.Response:
        load = {"dp_rank": 0, "num_running_reqs": self.log.generating, "num_waiting_reqs": 0}
        return web.json_response({"loads": [load]})

    async def _tell_server(self, request: web.Request) -> web.Response:
        self._note(request, None)
        command = f"serve --api-key {self.settings.secret}"
        return web.json_response({"api_key": self.settings.secret, "launch_command": command})

    async def _tell_ready(self, _: web.Request) -> web.Response:
        while self.is_deaf:
            await asyncio.sleep(0.02)
        return web.Response(status=200 if self.settings.is_ready else 503)

    async def _change(self, request: web.Request) -> web.Response:
        changes = await request.json()
        merged = {**msgspec.to_builtins(self.settings), **changes}
        self.settings = msgspec.convert(merged, StubSettings)
        self._faults = 0
        return web.json_response(msgspec.to_builtins(self.settings))

    async def _tell_log(self, _: web.Request) -> web.Response:
        return web.Response(body=msgspec.json.encode(self.log), content_type="application/json")

    async def _echo(self, request: web.Request) -> web.Response:
        """Any other path answers with what it was sent and by whom."""
        raw = await request.read()
        try:
            body = msgspec.json.decode(raw) if raw else None
        except msgspec.DecodeError:
            body = raw.decode(errors="replace")
        self._note(request, body)
        if request.path == "/open_session" and isinstance(body, dict):
            return web.json_response(body.get("session_id"))
        return web.json_response(
            {"path": request.path, "instance": self.settings.name, "body": body}
        )

    def _note(self, request: web.Request, body: object) -> StubRequest:
        entry = StubRequest(request.method, request.path, dict(request.headers), body)
        if len(self.log.requests) < MAX_LOG:
            self.log.requests.append(entry)
        return entry

    def _next_fault(self, raw: bytes) -> Fault:
        settings = self.settings
        is_meant = not settings.poison or settings.poison.encode() in raw
        if settings.fault is Fault.NONE or not is_meant or self._faults >= settings.fault_limit:
            return Fault.NONE
        self._faults += 1
        return settings.fault

    def _report(self, sequence: int) -> LoadReport:
        now_s = time.monotonic()
        return LoadReport(
            instance=self.settings.name,
            epoch=self._started_ns,
            sequence=sequence,
            time_s=now_s,
            last_pass_s=now_s,
            running_requests=self.log.generating,
            waiting_requests=0,
            waiting_uncached_tokens=0,
            prefilling_tokens=0,
            used_tokens=0,
            capacity_tokens=0,
            prefill_tokens_total=0,
            decode_tokens_total=0,
            proof=EngineProof(os.getpid(), "StubServer", "none", "none", "cpu", "stub", 1, 1),
            store=_describe_link(self.settings.namespace) if self.settings.namespace else None,
        )


def _describe_link(namespace: str) -> LinkReport:
    return LinkReport("attached", "", False, 0, 0, {}, {}, {}, {}, namespace=namespace)


async def _sleep_until(due_s: float) -> None:
    """Sleep to an absolute time, so that lateness does not add up from token to token."""
    await asyncio.sleep(max(0.0, due_s - time.monotonic()))
