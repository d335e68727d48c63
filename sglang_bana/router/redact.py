"""Taking secrets out of what an instance tells about itself.

SGLang's `/server_info` repeats its whole configuration, API keys included, and once more the words
of its command line, joined by blanks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

REDACTED = "<redacted>"
# A shorter one would be found in words that have nothing to do with it.
MIN_SECRET_CHARS = 4
_SECRET_NAMES = ("api_key", "password", "secret", "hf_token", "auth_token", "access_token")
# Up to the next option: nothing was quoted. Token counts (--max-total-tokens) are no secrets.
_OPTION = re.compile(
    r"(?<!\S)(--(?:[\w-]*(?:key|password|secret)[\w-]*|(?:[\w-]*-)?token)(?:=|\s+))(?!--)"
    r"\S.*?(?=\s--|$)",
    re.IGNORECASE | re.DOTALL,
)


def redact_info(body: bytes, secret: str) -> bytes:
    """The same JSON without secrets, by name and by value; `{}` where it cannot be read."""
    try:
        return msgspec.json.encode(redact_value(msgspec.json.decode(body), secret))
    except (msgspec.DecodeError, RecursionError):
        return b"{}"


def redact_value(value: object, secret: str) -> object:
    """A decoded JSON value without secrets: `secret`, and those it names, wherever they recur."""
    named = (found for found in _list_secrets(value) if len(found) >= MIN_SECRET_CHARS)
    # The longest first: one may be a part of another.
    known = sorted({*named, *filter(None, [secret])}, key=len, reverse=True)
    return _redact(value, known)


def _redact(value: object, known: list[str]) -> object:
    if isinstance(value, dict):
        return {
            name: REDACTED if inner and _is_secret(name) else _redact(inner, known)
            for name, inner in value.items()
        }
    if isinstance(value, list):
        return [_redact(inner, known) for inner in value]
    if isinstance(value, str):
        return _redact_text(value, known)
    return value


def _redact_text(text: str, known: list[str]) -> str:
    for secret in known:
        text = text.replace(secret, REDACTED)
    return _OPTION.sub(rf"\1{REDACTED}", text) if "--" in text else text


def _list_secrets(value: object) -> Iterator[str]:
    """Every text under a secret's name."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if isinstance(inner, str) and _is_secret(name):
                yield inner
            else:
                yield from _list_secrets(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _list_secrets(inner)


def _is_secret(name: str) -> bool:
    return name.endswith(_SECRET_NAMES)
