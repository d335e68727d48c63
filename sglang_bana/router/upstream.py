"""How bytes reach an instance: one pooled HTTP session and one that always connects anew.

SGLang closes idle connections after 5 s. A POST that fails at once on a reused, dead socket
says nothing about the instance, so it is sent again on a fresh connection.
"""

from __future__ import annotations

import asyncio
import errno
import io
from collections.abc import Mapping

import aiohttp
from yarl import URL

from sglang_bana.config import LimitsConfig
from sglang_bana.router.instances import Instance

POOL_IDLE_S = 4.0
STALE_WINDOW_S = 1.0
LARGE_BYTES = 2**18

UNREACHABLE = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
BROKEN = (
    aiohttp.ServerDisconnectedError,
    aiohttp.ClientOSError,
    aiohttp.ClientPayloadError,
    ConnectionResetError,
)


# Our own machine's shortages, which say nothing about an instance.
_OWN_SHORTAGES = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL}
)


class InstanceDied(aiohttp.ClientError):
    """The instance took the request, broke the connection, and is not there any more."""


class Message:
    """One request as it goes to an instance."""

    __slots__ = ("body", "headers", "method", "target")

    def __init__(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None
    ) -> None:
        self.method = method
        self.target = target
        self.headers = headers
        self.body = body


class Upstream:
    """The client side of the front door. Use as an async context manager."""

    def __init__(self, limits: LimitsConfig) -> None:
        self._far = aiohttp.ClientTimeout(total=None, sock_connect=limits.connect_timeout_s)
        # On this host the kernel connects at once or refuses. What time passes is our own delay in
        # a burst, and reports tell better whether the instance lives.
        self._near = aiohttp.ClientTimeout(total=None)
        self._pooled: aiohttp.ClientSession
        self._fresh: aiohttp.ClientSession

    async def __aenter__(self) -> Upstream:
        self._pooled = self._open(aiohttp.TCPConnector(limit=0, keepalive_timeout=POOL_IDLE_S))
        self._fresh = self._open(aiohttp.TCPConnector(limit=0, force_close=True))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._pooled.close()
        await self._fresh.close()

    async def send(self, instance: Instance, message: Message) -> aiohttp.ClientResponse:
        """The answer's head.

        UNREACHABLE: the instance never got the request. BROKEN, InstanceDied: it may have.
        """
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        try:
            return await self._request(self._pooled, instance, message)
        except UNREACHABLE:
            raise
        except BROKEN as stale:
            if loop.time() - started_s > STALE_WINDOW_S:
                raise
            try:
                return await self._request(self._fresh, instance, message)
            except UNREACHABLE as error:
                if is_refusal(error):
                    raise InstanceDied(str(stale)) from stale
                raise stale from error

    async def ask(
        self, instance: Instance, message: Message, timeout_s: float, max_bytes: int
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Status, headers and body of a small exchange within `timeout_s`; errors as for `send`."""
        async with asyncio.timeout(timeout_s):
            response = await self.send(instance, message)
            try:
                return response.status, response.headers, await read_up_to(response, max_bytes)
            finally:
                response.release()

    def _open(self, connector: aiohttp.TCPConnector) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=connector,
            timeout=self._far,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
            trust_env=False,
            max_line_size=64 * 1024,
            max_field_size=64 * 1024,
        )

    async def _request(
        self, session: aiohttp.ClientSession, instance: Instance, message: Message
    ) -> aiohttp.ClientResponse:
        url = URL(instance.spec.url.rstrip("/") + message.target, encoded=True)
        headers = dict(message.headers)
        if instance.spec.secret:
            headers["Authorization"] = f"Bearer {instance.spec.secret}"
        body = message.body
        # A large body is sent in parts, so that it does not hold up everybody else.
        data = io.BytesIO(body) if body is not None and len(body) > LARGE_BYTES else body
        return await session.request(
            message.method,
            url,
            headers=headers,
            data=data,
            allow_redirects=False,
            timeout=self._near if instance.spec.load_endpoint else self._far,
        )


def is_refusal(error: BaseException) -> bool:
    """Whether `error` proves that nobody listens at the instance's address."""
    if isinstance(error, aiohttp.ClientConnectorError):
        return error.os_error.errno not in _OWN_SHORTAGES
    return isinstance(error, InstanceDied)


async def read_up_to(response: aiohttp.ClientResponse, max_bytes: int) -> bytes:
    """The body, cut off after about `max_bytes`."""
    parts: list[bytes] = []
    size = 0
    while size <= max_bytes and (chunk := await response.content.readany()):
        parts.append(chunk)
        size += len(chunk)
    return b"".join(parts)
