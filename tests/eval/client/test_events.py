from __future__ import annotations

import json
from typing import Any

import pytest

from bana.eval.client.events import (
    NativeReader,
    OpenAiReader,
    Reader,
    read_complaint,
    spread_tokens,
    take_differences,
)
from bana.eval.client.http import Garbled


def feed(reader: Reader, *events: Any) -> Reader:
    """Event i comes at second i."""
    for place, event in enumerate(events):
        data = event.encode() if isinstance(event, str) else json.dumps(event).encode()
        reader.take(data, float(place))
    reader.settle()
    return reader


def native(tokens: int, **meta: Any) -> dict[str, Any]:
    return {"text": "x", "meta_info": {"completion_tokens": tokens, **meta}}


def chat(**delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


def usage(tokens: int) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": tokens}}


def test_native_events_tell_their_tokens() -> None:
    told = feed(NativeReader(), native(1), native(1), native(4, cached_tokens=9), "[DONE]").told

    assert (told.times_s, told.tokens, told.total_tokens) == ([0.0, 2.0], [1, 3], 4)
    assert (told.cached_tokens, told.is_done, told.complaint) == (9, True, None)


def test_a_native_abort_is_a_complaint_with_its_status() -> None:
    abort = {"type": "abort", "message": "queue\nis full", "status_code": 503}
    told = feed(NativeReader(), native(0, finish_reason=abort), "[DONE]").told

    assert told.complaint is not None
    assert (told.complaint.reason, told.complaint.code) == ("queue is full", "503")
    assert told.complaint.is_refusal


def test_a_native_end_is_no_complaint() -> None:
    end = {"type": "length", "length": 2}
    assert feed(NativeReader(), native(2, finish_reason=end)).told.complaint is None


def test_each_openai_event_with_output_is_a_token() -> None:
    told = feed(
        OpenAiReader(),
        chat(role="assistant", content=""),
        chat(reasoning_content="hm"),
        chat(reasoning="hm"),
        chat(content="a"),
        {"choices": [{"index": 0, "text": "b"}]},
        chat(content=None),
        {"choices": [], "id": "x"},
        "[DONE]",
    ).told

    assert told.times_s == [1.0, 2.0, 3.0, 4.0]
    assert (told.tokens, told.total_tokens) == ([1, 1, 1, 1], 4)


def test_the_final_usage_corrects_the_count() -> None:
    more = feed(OpenAiReader(), chat(content="ab"), chat(content="cd"), usage(5), "[DONE]").told
    fewer = feed(OpenAiReader(), *[chat(content="a")] * 3, usage(2), "[DONE]").told
    wrong = feed(OpenAiReader(), *[chat(content="a")] * 3, usage(0), "[DONE]").told

    assert (more.tokens, more.total_tokens) == ([3, 2], 5)
    assert (fewer.tokens, fewer.times_s, fewer.total_tokens) == ([1, 1], [0.0, 1.0], 2)
    assert (wrong.tokens, wrong.total_tokens) == ([1, 1, 1], 3)


def test_usage_with_every_event_is_exact() -> None:
    events = [{**chat(content="a"), "usage": {"completion_tokens": n}} for n in (1, 4, 5)]

    told = feed(OpenAiReader(), *events, usage(5), "[DONE]").told

    assert (told.tokens, told.total_tokens) == ([1, 3, 1], 5)


def test_cached_tokens_of_usage() -> None:
    event = usage(1)
    event["usage"]["prompt_tokens_details"] = {"cached_tokens": 3}

    assert feed(OpenAiReader(), chat(content="a"), event).told.cached_tokens == 3


@pytest.mark.parametrize(
    "event",
    [
        {"error": {"message": "bad", "code": "oops", "type": "t"}},
        {"object": "error", "message": "bad", "code": "oops"},
    ],
)
@pytest.mark.parametrize("reader", [NativeReader, OpenAiReader])
def test_an_error_event_is_a_complaint(reader: type, event: dict[str, Any]) -> None:
    told = feed(reader(), event).told

    assert told.complaint is not None
    assert (told.complaint.reason, told.complaint.code) == ("bad", "oops")
    assert not told.complaint.is_refusal


@pytest.mark.parametrize("data", ["{", "[]", '"x"', '{"choices": 3}', '{"meta_info": 3}', "{}"])
def test_unreadable_events_are_garbage(data: str) -> None:
    readers = [NativeReader(), OpenAiReader()]
    garbled = 0
    for reader in readers:
        try:
            reader.take(data.encode(), 0.0)
        except Garbled:
            garbled += 1
    assert garbled >= 1


@pytest.mark.parametrize(
    ("body", "reason", "code"),
    [
        (b'{"error": {"message": "full", "code": "queue_full"}}', "full", "queue_full"),
        (b'{"error": {"message": "full", "code": null, "type": "late"}}', "full", "late"),
        (b'{"object": "error", "message": "too long", "code": 400}', "too long", "400"),
        (b'{"detail": "Not Found"}', "Not Found", None),
        (b'{"error": "Unauthorized"}', "Unauthorized", None),
        (b"<html>\n gateway\n</html>", "'<html> gateway </html>'", None),
        (b"", "no reason given", None),
        (b"{}", "no reason given", None),
    ],
)
def test_reasons_in_every_shape(body: bytes, reason: str, code: str | None) -> None:
    found = read_complaint(body)

    assert (found.reason, found.code) == (reason, code)


def test_a_reason_is_one_line_of_bounded_length() -> None:
    body = json.dumps({"error": {"message": "a\nb " * 1_000}}).encode()

    assert "\n" not in read_complaint(body).reason
    assert len(read_complaint(body).reason) < 400


@pytest.mark.parametrize(("total", "events"), [(1, 1), (7, 3), (3, 7), (100, 8), (8, 100)])
def test_tokens_are_spread_evenly_and_begin_with_the_first_event(total: int, events: int) -> None:
    tokens = spread_tokens(total, events)

    assert (len(tokens), sum(tokens)) == (events, total)
    assert tokens[0] >= 1
    assert max(tokens) - min(tokens) <= 1


def test_differences_of_totals_never_fall() -> None:
    assert take_differences([1, 4, 3, 5]) == [1, 3, 0, 1]
