"""Text that came from elsewhere: bounded, without control characters, without credentials."""

from __future__ import annotations

import re
from collections.abc import Mapping

HIDDEN = "(hidden)"
MAX_TEXT = 160

# Control characters move a terminal's cursor; bidirectional overrides reorder what is read;
# lone surrogates cannot be written as UTF-8.
_UNREADABLE = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_SECRET_NAME = re.compile(
    r"api[_-]?key|admin[_-]?key|passw|secret|authori[sz]ation|credential|bearer"
    r"|(?:auth|access|hf|id)[_-]?token$|^token$",
    re.IGNORECASE,
)
_SECRET_TEXT = re.compile(r"\b(?:bearer|basic)\s+[^\s,;'\"]{6,}|\bsk-[\w-]{8,}", re.IGNORECASE)
_AUTHORITY = re.compile(r"(?:[\w.-]+|\[[0-9a-f:.%]+\])(?::\d+)?", re.IGNORECASE)


def clean_text(text: str, limit: int = MAX_TEXT) -> str:
    """`text` on one line of at most `limit` characters that neither terminal nor page obey."""
    # What lies far beyond the bound is never looked at: an error may be megabytes long.
    near = text[: 4 * limit]
    plain = _SECRET_TEXT.sub(HIDDEN, _UNREADABLE.sub(" ", near))
    joined = " ".join(plain.split())
    if len(joined) <= limit and len(near) == len(text):
        return joined
    return joined[: limit - 1] + "…"


def redact_url(url: str) -> str:
    """`url` without user, password, query and fragment; what is no URL stays as it is."""
    before, mark, after = url.partition("://")
    scheme, rest = (before, after) if mark else ("", url)
    if not mark and "@" not in url and "?" not in url:
        return url
    place = re.split(r"[?#]", rest, maxsplit=1)[0]
    if not _starts_with_host(place):
        place = place.rpartition("@")[2]
    return f"{scheme}{mark}{place}" if _starts_with_host(place) else HIDDEN


def _starts_with_host(place: str) -> bool:
    return _AUTHORITY.fullmatch(place.partition("/")[0]) is not None


def redact_settings(settings: Mapping[str, object]) -> dict[str, object]:
    """`settings` with the values of secrets hidden and URLs without credentials, at any depth."""
    return {name: _redact(name, value) for name, value in settings.items()}


def _redact(name: str, value: object) -> object:
    if _SECRET_NAME.search(name):
        return HIDDEN
    if isinstance(value, Mapping):
        return {str(key): _redact(str(key), inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_redact(name, inner) for inner in value]
    if isinstance(value, str):
        return redact_url(value) if "://" in value else _SECRET_TEXT.sub(HIDDEN, value)
    return value
