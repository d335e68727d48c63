"""What a client is told when something fails: always OpenAI's error object, with a stable code.

SGLang answers errors in five shapes; `normalise_error` turns each into this one.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from bana.slo.admission import Verdict

_JSON = "application/json"
_INFEASIBLE = Verdict.REJECTED_INFEASIBLE.value

_CODES = {
    400: "invalid_request",
    401: "invalid_api_key",
    403: "not_allowed",
    404: "not_found",
    405: "method_not_allowed",
    408: "request_timeout",
    409: "conflict",
    413: "body_too_large",
    415: "unsupported_media_type",
    422: "invalid_request",
    429: "overloaded",
    500: "engine_error",
    501: "not_implemented",
    502: "bad_gateway",
    503: "engine_unavailable",
    504: "engine_timeout",
}

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


class ApiError(Exception):
    """An answer of the front door itself; `code` is stable, `headers` go into the response."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.headers = dict(headers or {})


class ErrorBody(msgspec.Struct):
    """OpenAI's error object."""

    message: str
    type: str
    code: str
    param: str | None = None


def type_of(status: int) -> str:
    """OpenAI's error type for an HTTP status."""
    return _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")


def body_of(error: ApiError) -> ErrorBody:
    """The error object of `error`."""
    return ErrorBody(str(error), type_of(error.status), error.code, error.param)


def render_error(error: ErrorBody, path: str) -> bytes:
    """The JSON body; Anthropic's endpoints get their envelope around the same object."""
    if path.startswith("/v1/messages"):
        return msgspec.json.encode({"type": "error", "error": error})
    return msgspec.json.encode({"error": error})


def render_event(error: ErrorBody) -> bytes:
    """The server-sent event that ends a stream which had begun."""
    return b"data: " + msgspec.json.encode({"error": error}) + b"\n\n"


def normalise_error(status: int, content_type: str, body: bytes) -> ErrorBody:
    """The error object for an engine's answer >= 400, whatever shape it has."""
    found = _parse(body) if content_type.startswith(_JSON) else None
    message, param, code = _read(found)
    if not message:
        message = body[:2000].decode(errors="replace").strip() or f"the engine answered {status}"
    return ErrorBody(message, type_of(status), code or code_of(status, message), param)


def code_of(status: int, message: str) -> str:
    """The stable code of an engine's answer: our own word where it begins the message."""
    if message.startswith(f"{_INFEASIBLE}:"):
        return _INFEASIBLE
    return _CODES.get(status, "invalid_request" if status < 500 else "engine_error")


def _parse(body: bytes) -> object:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None


def _read(found: object) -> tuple[str, str | None, str | None]:
    if not isinstance(found, dict):
        return "", None, None
    inner = found.get("error")
    if isinstance(inner, str):
        return inner, None, None
    fields = inner if isinstance(inner, dict) else found
    message = fields.get("message") or fields.get("detail")
    param, code = fields.get("param"), fields.get("code")
    return (
        message if isinstance(message, str) else "" if message is None else str(message),
        param if isinstance(param, str) else None,
        # SGLang repeats the HTTP status as `code`; only words are stable codes.
        code if isinstance(code, str) and not code.isdigit() else None,
    )
