"""A refusal is known from the first event of a stream; every answer is left alone."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_bana.router.early_refusal import MAX_EVENT_BYTES, read_refusal, read_retry_s

FULL = "The request queue is full."
LATE = "rejected_infeasible: the request cannot meet its limits; retry after 0.731 s, or ask"


def _event(found: object) -> bytes:
    return b"data: " + json.dumps(found).encode() + b"\n\n"


def _abort(**reason: object) -> dict[str, object]:
    return {"text": "", "meta_info": {"id": "x", "finish_reason": {"type": "abort", **reason}}}


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        ({"error": {"message": LATE, "code": 429}}, (429, "rejected_infeasible", 0.731)),
        ({"error": {"message": FULL, "code": 503}}, (503, "engine_unavailable", None)),
        (_abort(message=LATE, status_code=429), (429, "rejected_infeasible", 0.731)),
        (_abort(message=FULL, status_code=503), (503, "engine_unavailable", None)),
    ],
)
def test_both_shapes_of_a_refusal(found: object, wanted: tuple[int, str, float | None]) -> None:
    for rest in (b"", b"data: [DONE]\n\n"):
        refusal = read_refusal(_event(found) + rest)
        assert refusal is not None
        assert (refusal.status, refusal.error.code, refusal.retry_after_s) == wanted


@pytest.mark.parametrize(
    "chunk",
    [
        _event({"error": {"message": "bad", "code": 400}}),
        _event({"error": {"message": "m", "code": "overloaded"}}),
        _event({"error": "text"}),
        _event(_abort(message="by the client")),
        _event({"text": "error", "meta_info": {"finish_reason": None}}),
        _event({"choices": [{"delta": {"content": '"error" "abort"'}}]}),
        _event({"error": {"message": "m" * MAX_EVENT_BYTES, "code": 429}}),
        _event({"error": {"message": "m", "code": 429}})[:-1],
        b'event: error\ndata: {"error": {"code": 429}}\n\n',
        b"",
    ],
)
def test_whatever_else_begins_a_stream(chunk: bytes) -> None:
    assert read_refusal(chunk) is None


@given(st.binary(max_size=300), st.sampled_from([b'"error"', b'"abort"']))
def test_no_bytes_break_it(noise: bytes, sign: bytes) -> None:
    assert read_refusal(b"data: " + sign + noise + b"\n\n") is None


@pytest.mark.parametrize(
    ("message", "seconds"),
    [("retry after 2 s", 2.0), ("retry after 0.050 s, or", 0.05), ("retry after noon", None)],
)
def test_seconds_of_a_message(message: str, seconds: float | None) -> None:
    assert read_retry_s(message) == seconds
