"""Where requests go, and the bytes of a request on its way there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

import msgspec

from bana.slo.errors import ConfigError

DEFAULT_PORTS = {"http": 80, "https": 443}
# Visible ASCII and spaces: what a header may hold, and no line end that would begin another one.
_HEADER_VALUE = re.compile(r"[\x20-\x7e\t]*")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class Target(msgspec.Struct, frozen=True):
    """A server: `url` is http(s)://HOST[:PORT][/PREFIX], `key` the bearer key that it wants.

    A prefix that ends in /v1, as OpenAI clients write it, means the same without it.
    """

    url: str
    key: str = ""

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            is_usable = parts.scheme in DEFAULT_PORTS and bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_usable = False
        if not is_usable or parts.query or parts.fragment or parts.username is not None:
            raise ConfigError(
                f"cannot send to {self.url!r}: write http://HOST[:PORT][/PREFIX] or https://…"
            )
        check_header("Authorization", self.key)

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        parts = urlsplit(self.url)
        return parts.port or DEFAULT_PORTS[parts.scheme]

    @property
    def is_secure(self) -> bool:
        return urlsplit(self.url).scheme == "https"

    @property
    def prefix(self) -> str:
        """What every path begins with."""
        return urlsplit(self.url).path.rstrip("/").removesuffix("/v1")

    @property
    def authority(self) -> str:
        """The Host header: IPv6 in brackets, the scheme's own port left out."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        is_default = urlsplit(self.url).port is None
        return host if is_default else f"{host}:{self.port}"


class Writer:
    """Writes requests to one target with the headers that all of them have."""

    def __init__(self, target: Target, headers: Mapping[str, str]) -> None:
        auth = {"Authorization": f"Bearer {target.key}"} if target.key else {}
        self._prefix = target.prefix
        self._common = f"Host: {target.authority}\r\n" + render_headers({**auth, **headers})

    def post(self, path: str, payload: bytes, headers: str = "") -> bytes:
        """A JSON POST; `headers` are rendered lines of this one request."""
        head = (
            f"POST {self._prefix}{path} HTTP/1.1\r\n{self._common}{headers}"
            f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
        )
        return head.encode() + payload

    def get(self, path: str) -> bytes:
        """A GET."""
        return f"GET {self._prefix}{path} HTTP/1.1\r\n{self._common}\r\n".encode()


def encode_post(target: Target, path: str, body: object) -> bytes:
    """The bytes of one JSON POST."""
    return Writer(target, {}).post(path, msgspec.json.encode(body))


def render_headers(headers: Mapping[str, str]) -> str:
    """Header lines; ConfigError for a name or value that would not stay one line."""
    for name, value in headers.items():
        check_header(name, value)
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items())


def check_header(name: str, value: str) -> None:
    """ConfigError unless `name: value` can be sent as a header."""
    if not _HEADER_NAME.fullmatch(name):
        raise ConfigError(f"header name {name!r} cannot be sent: write letters, digits and hyphens")
    if not _HEADER_VALUE.fullmatch(value):
        # The value may be a key: it is not repeated.
        raise ConfigError(f"the value of header {name} has characters other than visible ASCII")
