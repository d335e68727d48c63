"""HTTP itself: what aiohttp would refuse in plain words is refused with OpenAI's error object."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from aiohttp import web

from sglang_bana.router.errors import ApiError, body_of, render_error

MAX_REASON_CHARS = 300
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class ErrorObjectProtocol(web.RequestHandler):
    """One client connection; its answers to what is no HTTP differ from aiohttp's.

    `on_lost` is told when the connection has ended, however.
    """

    __slots__ = ("_on_lost",)

    def __init__(
        self, server: web.Server, idle_s: float, on_lost: Callable[[web.RequestHandler], None]
    ) -> None:
        loop = asyncio.get_running_loop()
        unlogged: Any = None
        super().__init__(server, loop=loop, keepalive_timeout=idle_s, access_log=unlogged)
        self._on_lost = on_lost

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self._on_lost(self)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        super().handle_error(request, status, exc, message)
        if status >= 500:
            error = ApiError(status, "internal_error", "the front door failed; see its log")
        else:
            reason = " ".join((message or "no reason known").split())[:MAX_REASON_CHARS]
            error = ApiError(status, "invalid_http", f"this is no valid HTTP/1.1: {reason}")
        answer = render_answer(error)
        answer.force_close()
        return answer


async def answer_expectation(request: web.Request) -> web.StreamResponse | None:
    """Let a client that asks send its body; None to go on, else the refusal."""
    wanted = request.headers.get("Expect", "")
    if wanted.lower() == "100-continue":
        await request.writer.write(CONTINUE)
        # The answer proper has not begun.
        request.writer.output_size = 0
        return None
    allowed = f"Expect: {wanted[:MAX_REASON_CHARS]} is not supported; allowed: 100-continue"
    return render_answer(ApiError(417, "expectation_failed", allowed))


def render_answer(error: ApiError) -> web.Response:
    """A complete answer that says `error`."""
    return web.Response(
        status=error.status,
        body=render_error(body_of(error), ""),
        content_type="application/json",
        headers={"x-bana-error": error.code},
    )
