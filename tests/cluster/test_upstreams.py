"""Servers that are attached instead of started."""

from __future__ import annotations

from pathlib import Path

import pytest

from bana.slo.errors import ConfigError
from sglang_bana.cluster.upstreams import attach_upstreams

URLS = ("http://127.0.0.1:30000/", "https://gpu.example")


def test_attached_servers_are_remote_and_have_no_load_channel() -> None:
    first, second = attach_upstreams(URLS, "")
    assert (first.url, second.url) == ("http://127.0.0.1:30000", "https://gpu.example")
    assert first.name != second.name
    assert not first.local
    assert (first.load_endpoint, first.secret) == ("", "")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("secret\n", ("secret", "secret")),
        ("https://gpu.example two\nhttp://127.0.0.1:30000 one\n", ("one", "two")),
        ("https://gpu.example/ two\n", ("", "two")),
    ],
)
def test_keys_are_given_by_a_file(tmp_path: Path, text: str, expected: tuple[str, ...]) -> None:
    file = tmp_path / "keys"
    file.write_text(text)
    assert tuple(spec.secret for spec in attach_upstreams(URLS, str(file))) == expected


@pytest.mark.parametrize("text", ["a\nb\n", "http://other key\n", "https://gpu.example k e y\n"])
def test_bad_key_files_are_refused_without_showing_them(tmp_path: Path, text: str) -> None:
    file = tmp_path / "keys"
    file.write_text(text)
    with pytest.raises(ConfigError, match="entry 1") as caught:
        attach_upstreams(URLS, str(file))
    assert "key\n" not in str(caught.value)


def test_missing_key_file_is_named() -> None:
    with pytest.raises(ConfigError, match="/no/such/file"):
        attach_upstreams(URLS, "/no/such/file")


@pytest.mark.parametrize(
    "url",
    ["127.0.0.1:30000", "ftp://h", "http://", "http://h:99999", "http://h?x=1", "http://[::1"],
)
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="no server's URL"):
        attach_upstreams([url], "")


def test_credentials_in_urls_are_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigError, match="key into a file") as caught:
        attach_upstreams(["http://user:hunter2@h"], "")
    assert "hunter2" not in str(caught.value)


def test_one_server_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="given twice"):
        attach_upstreams(["http://h", "http://h/"], "")
