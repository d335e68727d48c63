"""What a stub answers: how many tokens, when each is due, and in which shape.

A request may script its own times, so that TTFT and TPOT of its answer are known beforehand:
the header `x-stub-gaps-s: 0.2,0.05,0.05`, or `"stub_gaps_s": [0.2, 0.05, 0.05]` in its body, is
the wait before each token. Times are absolute, counted from the arrival of the request.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

import msgspec

from bana.eval.stub_records import StubSettings

GAPS_HEADER = "x-stub-gaps-s"
GAPS_KEY = "stub_gaps_s"
CHAT_PATH = "/v1/chat/completions"
LIMIT_KEYS = ("max_tokens", "max_completion_tokens", "max_new_tokens")

Body = Mapping[str, object]


class Script(msgspec.Struct, frozen=True):
    """`tokens` tokens: the first after `first_s`, the others each after its gap."""

    first_s: float
    tokens: int
    gaps_s: tuple[float, ...] = ()
    gap_s: float = 0.0

    @property
    def last_s(self) -> float:
        """When the last token is due."""
        gaps_s = sum(self.gaps_s) or self.gap_s * max(0, self.tokens - 1)
        return self.first_s + gaps_s

    def times_s(self) -> Iterator[float]:
        """When each token is due; lazily, since a stub may be asked for millions."""
        gaps = self.gaps_s or itertools.repeat(self.gap_s)
        return itertools.islice(itertools.accumulate(gaps, initial=self.first_s), self.tokens)


def plan_script(headers: Mapping[str, str], body: Body, settings: StubSettings) -> Script:
    """The script of one answer: the request's own, else that of the settings."""
    gaps_s = _read_gaps(headers, body)
    if gaps_s:
        return Script(gaps_s[0], len(gaps_s), gaps_s=gaps_s[1:])
    asked = read_asked(body) if settings.is_length_honoured else None
    tokens = settings.chunks if asked is None else asked
    return Script(settings.first_delay_s, tokens, gap_s=settings.chunk_interval_s)


def read_asked(body: Body) -> int | None:
    """How many tokens a request asks for, None where it does not say."""
    sampling = body.get("sampling_params")
    fields = {**sampling, **body} if isinstance(sampling, dict) else body
    found = (fields.get(key) for key in LIMIT_KEYS)
    return next((value for value in found if isinstance(value, int)), None)


def render_events(path: str, body: Body, script: Script, name: str) -> Iterator[bytes]:
    """The events of a stream, one a token, in the shape that `path` answers with."""
    rid = body.get("rid")
    for place in range(script.tokens):
        if path == "/generate":
            yield _render({"text": "x" * (place + 1), "meta_info": _describe(rid, place, script)})
        else:
            choice = {"index": 0, "delta": {"content": "x"}, "text": "x", "finish_reason": None}
            yield _render({**_head(rid, name), "choices": [choice]})


def render_role(body: Body, name: str) -> bytes:
    """The event without a token with which many servers begin a chat."""
    delta = {"role": "assistant", "content": ""}
    choice = {"index": 0, "delta": delta, "finish_reason": None}
    return _render({**_head(body.get("rid"), name), "choices": [choice]})


def render_refusal(path: str) -> bytes:
    """The event with which SGLang refuses a request whose stream is open already."""
    message = (
        "rejected_infeasible: it is late already; retry after 2.500 s, or ask for wider limits"
    )
    if path == "/generate":
        reason = {"type": "abort", "message": message, "status_code": 429}
        return _render({"text": "", "output_ids": [], "meta_info": {"finish_reason": reason}})
    return _render({"error": {"message": message, "type": "TOO_MANY_REQUESTS", "code": 429}})


def render_usage(path: str, body: Body, script: Script, name: str) -> bytes:
    """The event that tells OpenAI's counts, nothing where it was not asked for."""
    options = body.get("stream_options")
    is_asked = isinstance(options, dict) and options.get("include_usage") is True
    if path == "/generate" or not is_asked:
        return b""
    return _render({**_head(body.get("rid"), name), "choices": [], "usage": _usage(script.tokens)})


def render_whole(path: str, body: Body, script: Script, name: str) -> object:
    """A complete answer, in the shape that `path` answers with."""
    rid = body.get("request_id") or body.get("rid")
    text = "x" * script.tokens
    if path == "/generate":
        return {"text": text, "meta_info": _describe(rid, script.tokens - 1, script)}
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "text": text, "finish_reason": "stop"}
    head = {**_head(rid, name), "object": "chat.completion"}
    return {**head, "choices": [choice], "usage": _usage(script.tokens)}


def _head(rid: object, name: str) -> dict[str, object]:
    return {"id": rid, "object": "chat.completion.chunk", "created": 0, "model": name}


def _describe(rid: object, place: int, script: Script) -> dict[str, object]:
    is_last = place + 1 >= script.tokens
    return {
        "id": rid,
        "finish_reason": {"type": "length", "length": script.tokens} if is_last else None,
        "prompt_tokens": 1,
        "completion_tokens": place + 1,
        "cached_tokens": 0,
    }


def _usage(tokens: int) -> dict[str, object]:
    details = {"cached_tokens": 0}
    return {
        "prompt_tokens": 1,
        "completion_tokens": tokens,
        "total_tokens": tokens + 1,
        "prompt_tokens_details": details,
    }


def _read_gaps(headers: Mapping[str, str], body: Body) -> tuple[float, ...]:
    text = headers.get(GAPS_HEADER)
    given = text.split(",") if text is not None else body.get(GAPS_KEY)
    return tuple(float(gap) for gap in given) if isinstance(given, list) else ()


def _render(event: object) -> bytes:
    return b"data: " + msgspec.json.encode(event) + b"\n\n"
