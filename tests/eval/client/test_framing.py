from __future__ import annotations

import pytest

from bana.eval.client.framing import (
    MAX_CHUNK_BYTES,
    MAX_LINE_BYTES,
    ChunkedBody,
    Head,
    LengthBody,
    UntilCloseBody,
    choose_body,
)

HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKS = b"5\r\nhello\r\n6;note=x\r\n world\r\n0\r\n\r\n"


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 100])
def test_chunks_however_they_are_cut(piece: int) -> None:
    body = ChunkedBody()

    found = b"".join(body.feed(CHUNKS[i : i + piece]) for i in range(0, len(CHUNKS), piece))

    assert found == b"hello world"
    assert body.is_complete


def test_a_chunked_body_is_over_only_with_its_last_line_end() -> None:
    body = ChunkedBody()

    body.feed(CHUNKS[:-2])
    assert not body.is_complete
    body.feed(CHUNKS[-2:])
    assert body.is_complete


def test_trailers_end_a_chunked_body() -> None:
    body = ChunkedBody()

    assert body.feed(b"1\r\nx\r\n0\r\nExpires: never\r\n\r\n") == b"x"
    assert body.is_complete


@pytest.mark.parametrize(
    "data", [b"zz\r\n", b"%x\r\n" % (MAX_CHUNK_BYTES + 1), b"-1\r\n", b"1" * (MAX_LINE_BYTES + 1)]
)
def test_chunks_that_are_none_or_without_bound_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"chunk|invalid literal"):
        ChunkedBody().feed(data)


def test_length_is_kept_exactly() -> None:
    body = LengthBody(3)

    body.feed(b"ab")
    assert not body.is_complete
    body.feed(b"c")
    assert body.is_complete
    with pytest.raises(ValueError, match="Content-Length"):
        body.feed(b"d")


@pytest.mark.parametrize(
    ("lines", "kind"),
    [
        (b"Content-Length: 3", LengthBody),
        (b"TRANSFER-ENCODING: Chunked", ChunkedBody),
        (b"Transfer-Encoding: chunked\r\nContent-Length: 3", ChunkedBody),
        (b"Server: x", UntilCloseBody),
    ],
)
def test_headers_choose_the_framing(lines: bytes, kind: type) -> None:
    assert isinstance(choose_body(Head(HEAD + lines)), kind)


def test_a_length_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="Content-Length"):
        choose_body(Head(HEAD + b"Content-Length: -3"))


def test_fields_are_found_in_any_case_and_keep_theirs() -> None:
    head = Head(HEAD + b"X-Bana-Instance: Node-A\r\nOther: 1")

    assert head.field(b"x-bana-instance") == b"Node-A"
    assert head.field(b"other") == b"1"
    assert head.field(b"instance") is None
