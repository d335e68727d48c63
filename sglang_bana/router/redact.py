"""Taking secrets out of what an instance tells about itself.

SGLang's `/server_info` repeats its whole configuration, API keys included.
"""

from __future__ import annotations

import msgspec

REDACTED = "<redacted>"
_SECRET_NAMES = ("api_key", "password", "secret", "hf_token")


def redact_info(body: bytes, secret: str) -> bytes:
    """The same JSON without secrets, by name and by value; `{}` where it cannot be read."""
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return b"{}"
    return msgspec.json.encode(redact_value(found, secret))


def redact_value(value: object, secret: str) -> object:
    """A decoded JSON value without secrets."""
    if isinstance(value, dict):
        return {
            name: REDACTED if inner and _is_secret(name) else redact_value(inner, secret)
            for name, inner in value.items()
        }
    if isinstance(value, list):
        return [redact_value(inner, secret) for inner in value]
    if isinstance(value, str) and secret and secret in value:
        return value.replace(secret, REDACTED)
    return value


def _is_secret(name: str) -> bool:
    return name.endswith(_SECRET_NAMES)
