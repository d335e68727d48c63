"""Keys, namespaces and ages as people write them."""

from __future__ import annotations

import re
from pathlib import Path

from bana.radix_global.keys import KEY_BYTES
from bana.radix_global.wire_parts import MAX_BATCH_PAGES
from bana.slo.errors import ConfigError
from sglang_bana.config import expand_home

UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
AGE = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)([smhd])", re.ASCII)
MAX_AGE_S = 36_500 * UNITS_S["d"]


def parse_key(text: str, where: str) -> bytes:
    """A page's key; ConfigError names `where` it came from."""
    try:
        key = bytes.fromhex(text.strip())
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise ConfigError(
            f"{where} {text.strip()[:80]!r}, allowed: {2 * KEY_BYTES} hex digits; correct it"
        )
    return key


def parse_namespace(text: str) -> int:
    """A namespace's tag, as `bana store ls` prints it."""
    try:
        tag = int(text, 16)
    except ValueError:
        tag = -1
    if not 0 <= tag < 2**32:
        raise ConfigError(f"--namespace {text!r}, allowed: 8 hex digits; see `bana store ls`")
    return tag


def parse_age(text: str) -> float:
    """An age in seconds, written as a number and one of s, m, h, d."""
    found = AGE.fullmatch(text.strip())
    age_s = float(found[1]) * UNITS_S[found[2]] if found else 0.0
    if not 0 < age_s <= MAX_AGE_S:
        raise ConfigError(
            f"--older {text[:80]!r}, allowed: a number > 0 with s, m, h or d, such as 90s, 15m, 2h "
            f"or 7d, at most {MAX_AGE_S // UNITS_S['d']:.0f}d"
        )
    return age_s


def read_keys(name: str) -> bytes:
    """The keys of a file, one a line, end to end; empty lines and `#` comments are skipped."""
    path: Path = expand_home(name)
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read keys from {name!r}: {error}; name a text file") from error
    told = [(n, line.partition("#")[0].strip()) for n, line in enumerate(lines, 1)]
    keys = [parse_key(text, f"{name}, line {n}:") for n, text in told if text]
    if not 0 < len(keys) <= MAX_BATCH_PAGES:
        raise ConfigError(
            f"{name!r} holds {len(keys)} keys, allowed: 1..{MAX_BATCH_PAGES}; split it"
        )
    return b"".join(keys)
