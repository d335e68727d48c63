"""Whose request this is: API keys, hashed in memory, compared in constant time, reloaded hot.

A keys file is TOML; only hashes are written into it:

    [[keys]]
    name = "team-a"
    sha256 = "…64 hex digits of the key's SHA-256…"
    slo_class = "interactive"     # optional: fixes the class, which a header may only lower
    cache_salt = "team-a"         # optional: separates the prefix cache of this key
    max_requests = 100            # optional: how many of its requests may be in flight
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated

import msgspec

from bana.slo.errors import ConfigError, describe_unknown
from bana.slo.limits import RequestCount
from sglang_bana.config import AuthConfig, expand_home
from sglang_bana.router.endpoints import Access
from sglang_bana.router.errors import ApiError

_MAX_FILE_BYTES = 16 * 2**20
Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-fA-F]{64}$")]


class KeyEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One key of the keys file."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
    sha256: Digest
    slo_class: str | None = None
    cache_salt: str | None = None
    max_requests: RequestCount | None = None


class KeysFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole keys file."""

    keys: tuple[KeyEntry, ...] = ()


class Grant(msgspec.Struct, frozen=True):
    """What a caller may do. `name` owns the request; anonymous callers share the empty name."""

    name: str = ""
    slo_class: str | None = None
    cache_salt: str | None = None
    max_requests: int | None = None
    access: frozenset[Access] = frozenset({Access.PUBLIC})


_USER = frozenset({Access.PUBLIC, Access.USER})
_CONTROL = frozenset({Access.PUBLIC, Access.USER, Access.CONTROL})
_ADMIN = frozenset(Access)
_OPEN = Grant(access=_USER)
_NOBODY = Grant()


def read_keys(path: Path, classes: Iterable[str]) -> KeysFile:
    """The checked keys file; ConfigError names what is wrong."""
    known = sorted(classes)
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise ConfigError(f"auth.keys_file {path} exceeds {_MAX_FILE_BYTES} bytes; shorten it")
        found = msgspec.toml.decode(path.read_bytes(), type=KeysFile)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"auth.keys_file {path} cannot be read: {error}; repair it") from error
    taken: dict[str, str] = {}
    for entry in found.keys:
        digest = entry.sha256.lower()
        if digest in taken:
            raise ConfigError(
                f"auth.keys_file {path}: {taken[digest]!r} and {entry.name!r} have the same key; "
                "give each its own"
            )
        taken[digest] = entry.name
        if entry.slo_class is not None and entry.slo_class not in known:
            what = f"SLO class of key {entry.name!r} in auth.keys_file:"
            raise ConfigError(describe_unknown(what, entry.slo_class, known))
    return found


class Keyring:
    """The keys in force. Lookups go by SHA-256, whose timing tells nothing about a key."""

    def __init__(self, auth: AuthConfig, control_key: str, classes: Iterable[str]) -> None:
        self._auth = auth
        self._control_key = control_key
        self._classes = tuple(classes)
        self._grants: Mapping[bytes, Grant] = {}
        self._mtime_ns: int | None = None
        self.fault: str | None = None
        self._install(KeysFile())
        self._path = expand_home(auth.keys_file) if auth.keys_file else None
        if self._path is not None:
            self._load(self._path)

    @property
    def is_open(self) -> bool:
        """Whether callers without a key may use the user endpoints."""
        return not self._auth.api_key and self._path is None

    def reload(self) -> bool:
        """Take a changed keys file; a broken one keeps the old keys and sets `fault`."""
        path = self._path
        try:
            if path is None or path.stat().st_mtime_ns == self._mtime_ns:
                return False
            self._load(path)
        except (ConfigError, OSError) as error:
            if isinstance(error, OSError):
                # Whatever comes back at this path is read, however old it is.
                self._mtime_ns = None
            self.fault = f"{error}; the keys read before stay in force"
            return False
        self.fault = None
        return True

    def identify(self, authorization: str | None, x_api_key: str | None) -> Grant:
        """The grant behind a caller's key; without a known key what anybody may do."""
        key = _read_bearer(authorization) or x_api_key
        if key is not None:
            digest = _digest(key)
            grant = self._grants.get(digest)
            if grant is not None:
                return grant
        return _OPEN if self.is_open else _NOBODY

    def authorise(self, grant: Grant, access: Access) -> None:
        """ApiError unless `grant` opens endpoints of this access."""
        if access in grant.access:
            return
        if access is Access.ADMIN and not self._auth.admin_api_key:
            raise ApiError(
                403,
                "admin_key_unset",
                "administrative endpoints are off, because this server has no admin key; "
                "start it with --admin-api-key",
            )
        wanted = "admin API key" if access in (Access.ADMIN, Access.CONTROL) else "API key"
        raise ApiError(
            401,
            "invalid_api_key",
            f"no valid {wanted} was sent; send it as 'Authorization: Bearer KEY'",
            headers={"WWW-Authenticate": "Bearer"},
        )

    def _load(self, path: Path) -> None:
        self._mtime_ns = path.stat().st_mtime_ns if path.exists() else None
        self._install(read_keys(path, self._classes))

    def _install(self, file: KeysFile) -> None:
        grants: dict[bytes, Grant] = {}
        for entry in file.keys:
            grants[bytes.fromhex(entry.sha256)] = Grant(
                entry.name, entry.slo_class, entry.cache_salt, entry.max_requests, _USER
            )
        if self._auth.api_key:
            grants[_digest(self._auth.api_key)] = Grant("api_key", access=_USER)
        if self._control_key:
            grants[_digest(self._control_key)] = Grant("control", access=_CONTROL)
        if self._auth.admin_api_key:
            grants[_digest(self._auth.admin_api_key)] = Grant("admin", access=_ADMIN)
        self._grants = grants


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()


def _read_bearer(authorization: str | None) -> str | None:
    if authorization is None:
        return None
    scheme, _, key = authorization.partition(" ")
    return key.strip() if scheme.lower() == "bearer" else None
