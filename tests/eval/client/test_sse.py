from __future__ import annotations

import pytest

from bana.eval.client.http import Garbled
from bana.eval.client.sse import MAX_EVENT_BYTES, EventStream, show_bytes

STREAM = (
    b': keep-alive\n\ndata: {"a": 1}\n\ndata:{"b": 2}\n\nevent: x\nid: 7\nretry: 9\ndata: [1,\n'
    b"data: 2]\n\n\n\ndata: [DONE]\n\n"
)
EVENTS = [b'{"a": 1}', b'{"b": 2}', b"[1,\n2]", b"[DONE]"]


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("piece", [1, 2, 5, 11, 1_000])
def test_events_however_their_bytes_and_lines_come(piece: int, line_end: bytes) -> None:
    stream, body = EventStream(), STREAM.replace(b"\n", line_end)

    found = [e for i in range(0, len(body), piece) for e in stream.feed(body[i : i + piece])]

    # With CR alone, the last blank line may still become a CRLF.
    assert found == EVENTS if line_end != b"\r" else found in (EVENTS, EVENTS[:-1])


def test_several_events_in_one_piece_and_a_rest() -> None:
    stream = EventStream()

    assert stream.feed(b"data: 1\n\ndata: 2\n\ndata: 3") == [b"1", b"2"]
    assert stream.rest == b"data: 3"
    assert stream.feed(b"4\n\n") == [b"34"]


@pytest.mark.parametrize(
    "body", [b"\x00\xff not an event\n\n", b'{"text": 1}\n\n', b"datum: x\n\n"]
)
def test_what_is_no_event_is_garbage(body: bytes) -> None:
    with pytest.raises(Garbled, match="not an event stream"):
        EventStream().feed(body)


def test_an_event_without_end_is_bounded() -> None:
    stream = EventStream()

    stream.feed(b"data: " + b"x" * (MAX_EVENT_BYTES - 6))
    with pytest.raises(Garbled, match="bytes"):
        stream.feed(b"x")


def test_what_is_shown_is_one_short_line() -> None:
    assert show_bytes(b"a\r\n\tb\x00") == "'a b�'"
    assert len(show_bytes(b"x" * 1_000)) < 100
