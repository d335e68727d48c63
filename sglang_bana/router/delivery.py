"""One client's answer: whole, or streamed so that it can still end in a well-formed error.

A stream of server-sent events is written event by event: the unfinished tail of a chunk waits
for its end, so that an error event never lands in the middle of another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping

from aiohttp import web
from multidict import CIMultiDict

from sglang_bana.router.errors import ApiError, ErrorBody, body_of, render_error, render_event

MAX_HELD_BYTES = 2**20
FAREWELL_S = 1.0
EVENT_STREAM = "text/event-stream"
_ENDS = (b"\n\n", b"\r\n\r\n")

HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_OURS = HOP_BY_HOP | {"content-length", "date", "server", "x-request-id"}


class ClientGone(Exception):
    """The client does not take its answer any more."""


class Delivery:
    """Writes the answer to one request. `headers` are bana's own response headers."""

    def __init__(self, request: web.BaseRequest) -> None:
        self._request = request
        self.headers: dict[str, str] = {"Server": "bana"}
        self.response: web.StreamResponse | None = None
        self._is_events = False
        self._held = b""

    @property
    def is_started(self) -> bool:
        """Whether the client has been told a status, so that only the stream can carry errors."""
        return self.response is not None and self.response.prepared

    @property
    def status(self) -> int:
        """The status of the answer, as far as there is one."""
        return 200 if self.response is None else self.response.status

    def answer_whole(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Answer with a complete body, which `send` writes."""
        self.response = web.Response(status=status, body=body, headers=self._merge(headers))

    def answer_error(self, status: int, error: ErrorBody, headers: Mapping[str, str]) -> None:
        """Answer with an error object."""
        own = {**headers, "Content-Type": "application/json", "x-bana-error": error.code}
        self.answer_whole(status, own, render_error(error, self._request.path))

    def answer_refusal(self, error: ApiError) -> None:
        """Answer with an error of the front door itself."""
        self.answer_error(error.status, body_of(error), error.headers)

    async def send(self, timeout_s: float) -> None:
        """Write a whole answer out; ClientGone when nobody takes it within `timeout_s`.

        A stream, and what was sent already, is left alone.
        """
        response = self.response
        if response is None or self.is_started:
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self._guard(response.prepare(self._request))
                await self._guard(response.write_eof())
        except TimeoutError:
            self._hang_up()
            raise ClientGone from None

    async def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """Tell the client that a stream begins."""
        merged = self._merge(headers)
        self._is_events = headers.get("Content-Type", "").startswith(EVENT_STREAM)
        if self._is_events:
            merged.setdefault("Cache-Control", "no-cache")
            # Proxies in between must not collect events.
            merged.setdefault("X-Accel-Buffering", "no")
        response = web.StreamResponse(status=status, headers=merged)
        self.response = response
        await self._guard(response.prepare(self._request))

    async def write(self, chunk: bytes) -> None:
        """Pass on a chunk; ClientGone when nobody takes it."""
        if self._is_events and (self._held or not chunk.endswith(b"\n\n")):
            chunk = self._take_events(self._held + chunk)
        if chunk and self.response is not None:
            await self._guard(self.response.write(chunk))

    async def finish(self) -> None:
        """The stream is complete."""
        if self.response is None:
            return
        if self._held:
            await self._guard(self.response.write(self._held))
        await self._guard(self.response.write_eof())

    async def fail(self, error: ErrorBody) -> None:
        """End a stream that had begun: an error event without [DONE], or a broken connection."""
        if self.response is None:
            return
        self.response.force_close()
        try:
            async with asyncio.timeout(FAREWELL_S):
                await self._write_farewell(self.response, error)
        except TimeoutError:
            self._hang_up()

    async def _write_farewell(self, response: web.StreamResponse, error: ErrorBody) -> None:
        if not self._is_events:
            # Nothing else tells a client of plain chunks that the end is missing.
            self._hang_up()
            return
        await self._guard(response.write(render_event(error)))
        await self._guard(response.write_eof())

    def _hang_up(self) -> None:
        if self._request.transport is not None:
            self._request.transport.abort()

    def _take_events(self, data: bytes) -> bytes:
        end = max(found + len(mark) if (found := data.rfind(mark)) >= 0 else 0 for mark in _ENDS)
        if end == 0 and len(data) > MAX_HELD_BYTES:
            end = len(data)
        self._held = data[end:]
        return data[:end]

    def _merge(self, headers: Mapping[str, str]) -> CIMultiDict[str]:
        merged = CIMultiDict((k, v) for k, v in headers.items() if k.lower() not in _OURS)
        merged.update(self.headers)
        return merged

    async def _guard(self, writing: Awaitable[object]) -> None:
        try:
            await writing
        except ConnectionError as error:
            raise ClientGone from error
