from __future__ import annotations

import pytest

from bana.eval.client.target import Target, Writer, encode_post
from bana.slo.errors import ConfigError


@pytest.mark.parametrize(
    ("url", "host", "port", "prefix", "authority"),
    [
        ("http://127.0.0.1:8000", "127.0.0.1", 8000, "", "127.0.0.1:8000"),
        ("http://example.test", "example.test", 80, "", "example.test"),
        ("https://example.test/", "example.test", 443, "", "example.test"),
        ("https://example.test/api/v1", "example.test", 443, "/api", "example.test"),
        ("http://[::1]:30000/v1/", "::1", 30000, "", "[::1]:30000"),
        ("http://[::1]/a/b", "::1", 80, "/a/b", "[::1]"),
    ],
)
def test_urls_are_taken_apart(url: str, host: str, port: int, prefix: str, authority: str) -> None:
    target = Target(url)

    assert (target.host, target.port) == (host, port)
    assert (target.prefix, target.authority) == (prefix, authority)
    assert target.is_secure == url.startswith("https")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:8000",
        "ftp://example.test",
        "http://",
        "http://h:99999",
        "http://h:0",
        "http://h/?a=1",
        "http://h/#a",
        "http://user:word@h",
        "http://[::1",
    ],
)
def test_urls_that_cannot_be_sent_to_are_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="cannot send to"):
        Target(url)


def test_a_key_travels_as_bearer() -> None:
    request = encode_post(Target("http://127.0.0.1:8000", "secret"), "/generate", {"a": 1})

    assert request.startswith(b"POST /generate HTTP/1.1\r\nHost: 127.0.0.1:8000\r\n")
    assert b"Authorization: Bearer secret\r\n" in request
    assert request.endswith(b'Content-Length: 7\r\n\r\n{"a":1}')


def test_prefix_and_headers_are_in_every_request() -> None:
    writer = Writer(Target("http://h/a/v1"), {"x-team": "blue"})

    assert writer.get("/metrics") == b"GET /a/metrics HTTP/1.1\r\nHost: h\r\nx-team: blue\r\n\r\n"
    post = writer.post("/v1/completions", b"{}", "x-own: 1\r\n")
    assert post.startswith(b"POST /a/v1/completions HTTP/1.1\r\nHost: h\r\n")
    assert b"\r\nx-team: blue\r\nx-own: 1\r\n" in post


@pytest.mark.parametrize("headers", [{"a b": "1"}, {"a": "1\r\nb: 2"}, {"a": "ä"}, {"": "1"}])
def test_what_would_not_stay_one_header_is_refused(headers: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="header"):
        Writer(Target("http://h"), headers)


def test_a_key_that_cannot_be_sent_is_refused_without_being_shown() -> None:
    with pytest.raises(ConfigError) as refused:
        Target("http://h", "hidden\n")
    assert "hidden" not in str(refused.value)
