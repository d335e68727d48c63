"""Each of the engine's error shapes becomes OpenAI's object."""

from __future__ import annotations

import json

import pytest

from sglang_bana.router.errors import (
    ApiError,
    ErrorBody,
    body_of,
    normalise_error,
    render_error,
    render_event,
    type_of,
)

JSON = "application/json"


@pytest.mark.parametrize(
    ("status", "body", "wanted"),
    [
        (
            400,
            {"object": "error", "message": "m", "type": "BadRequest", "param": "p", "code": 400},
            ("m", "invalid_request_error", "invalid_request", "p"),
        ),
        (400, {"error": {"message": "m"}}, ("m", "invalid_request_error", "invalid_request", None)),
        (400, {"error": "broken"}, ("broken", "invalid_request_error", "invalid_request", None)),
        (404, {"detail": "Not Found"}, ("Not Found", "not_found_error", "not_found", None)),
        (
            404,
            {"error": {"message": "m", "code": "model_not_found", "param": "model"}},
            ("m", "not_found_error", "model_not_found", "model"),
        ),
        (
            500,
            {"type": "error", "error": {"type": "api_error", "message": "m"}},
            ("m", "server_error", "engine_error", None),
        ),
        (
            422,
            {"detail": [{"loc": 1}]},
            ("[{'loc': 1}]", "invalid_request_error", "invalid_request", None),
        ),
        (503, {}, ("{}", "server_error", "engine_unavailable", None)),
        (418, [1], ("[1]", "invalid_request_error", "invalid_request", None)),
    ],
)
def test_shapes_of_the_engine(
    status: int, body: object, wanted: tuple[str, str, str, str | None]
) -> None:
    error = normalise_error(status, JSON, json.dumps(body).encode())
    assert (error.message, error.type, error.code, error.param) == wanted


@pytest.mark.parametrize("body", [b"", b"\xff\xfe", b"{broken", b"Internal Server Error"])
def test_bodies_that_are_no_json_still_give_a_message(body: bytes) -> None:
    for kind in (JSON, "text/plain"):
        error = normalise_error(500, kind, body)
        assert error.message
        assert error.code == "engine_error"


def test_an_own_error_keeps_its_code() -> None:
    error = body_of(ApiError(429, "overloaded", "full", "p"))
    assert error == ErrorBody("full", "rate_limit_error", "overloaded", "p")
    assert json.loads(render_error(error, "/v1/chat/completions")) == {
        "error": {"message": "full", "type": "rate_limit_error", "code": "overloaded", "param": "p"}
    }
    assert json.loads(render_error(error, "/v1/messages"))["type"] == "error"
    event = render_event(error)
    assert event.startswith(b"data: {")
    assert event.endswith(b"\n\n")


@pytest.mark.parametrize(("status", "kind"), [(401, "authentication_error"), (502, "server_error")])
def test_types_follow_the_status(status: int, kind: str) -> None:
    assert type_of(status) == kind
