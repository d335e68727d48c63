"""Running servers that are attached instead of started: their URLs and keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from bana.slo.errors import ConfigError
from sglang_bana.config import UpstreamSpec, expand_home


def attach_upstreams(urls: Sequence[str], keys_file: str) -> tuple[UpstreamSpec, ...]:
    """One spec per URL, with its key; ConfigError when a URL or the file cannot be used."""
    cleaned = [_check_url(url) for url in urls]
    doubled = next((url for url in cleaned if cleaned.count(url) > 1), None)
    if doubled is not None:
        raise ConfigError(f"--upstream {doubled} is given twice; name each server once")
    keys = read_keys(keys_file, cleaned) if keys_file else {}
    return tuple(
        # Another server's clock is never assumed to be ours: it is told the remaining time.
        UpstreamSpec(name=f"upstream-{index}", url=url, local=False, secret=keys.get(url, ""))
        for index, url in enumerate(cleaned)
    )


def read_keys(keys_file: str, urls: Sequence[str]) -> Mapping[str, str]:
    """The key of each URL: one bare key for all, or lines `URL KEY`."""
    try:
        text = expand_home(keys_file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot read launch.upstream_keys_file {keys_file!r}: {error}; name a readable file"
        ) from error
    rows = [line.split() for line in text.splitlines() if line.strip()]
    if len(rows) == 1 and len(rows[0]) == 1:
        return dict.fromkeys(urls, rows[0][0])
    keys: dict[str, str] = {}
    for number, row in enumerate(rows, start=1):
        # The line itself is not shown: it may hold a key.
        if len(row) != 2 or row[0].rstrip("/") not in urls:
            raise ConfigError(
                f"launch.upstream_keys_file {keys_file!r}, entry {number}: expected `URL KEY` with "
                "a URL given by --upstream, or a single key for all of them"
            )
        keys[row[0].rstrip("/")] = row[1]
    return keys


def _check_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        is_plain = parts.scheme in ("http", "https") and bool(parts.hostname)
        is_plain = is_plain and parts.port != 0 and not any(map(str.isspace, url))
    except ValueError:
        is_plain = False
    if not is_plain or parts.query or parts.fragment:
        raise ConfigError(
            f"--upstream {url!r} is no server's URL; allowed: http://HOST:PORT or https://HOST"
        )
    if parts.username is not None:
        raise ConfigError(
            f"--upstream for {parts.hostname} holds credentials; put its key into a file and name "
            "that with --upstream-key-file"
        )
    return url.rstrip("/")
