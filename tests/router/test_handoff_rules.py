"""Which prompts may be handed off, and what else requests ask of instances."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import msgspec
import pytest

from bana.slo.roles import Work
from sglang_bana.config import UpstreamSpec
from sglang_bana.router.body import Shape, estimate_shape, parse_fields, read_prompt
from sglang_bana.router.call import Call
from sglang_bana.router.endpoints import find_endpoint
from sglang_bana.router.handoff_rules import Obstacle, find_obstacle, find_work
from sglang_bana.router.instances import Instance

CHAT = "/v1/chat/completions"
LONG = "word " * 40


def call_of(path: str, body: object = None, **changes: Any) -> Call:
    endpoint = find_endpoint(path)
    assert endpoint is not None
    if body is None:
        return Call(endpoint, "POST", path, {}, b"opaque", None, Shape(), b"", **changes)
    fields = parse_fields(json.dumps(body).encode())
    prompt = read_prompt(fields, endpoint)
    shape = estimate_shape(fields, endpoint, prompt)
    return Call(endpoint, "POST", path, {}, None, fields, shape, prompt, **changes)


def chat(content: object, **more: object) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": content}], **more}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {"text": LONG}),
        ("/generate", {"input_ids": list(range(40)), "return_logprob": True}),
        ("/generate", {"text": LONG, "return_logprob": True, "logprob_start_len": -1}),
        ("/v1/completions", {"prompt": LONG, "logprobs": 3, "n": 1, "best_of": 1}),
        (CHAT, chat([{"type": "text", "text": LONG}], stream=True)),
        (CHAT, chat(LONG + '{"type": "image_url"}')),
        ("/v1/messages", {"messages": [{"role": "user", "content": LONG}], "max_tokens": 9}),
        ("/v1/responses", {"input": LONG, "background": False}),
        ("/api/chat", chat(LONG)),
        # What a template puts before a short question counts as well.
        (CHAT, chat("why?", tools=[{"type": "function", "function": {"description": LONG}}])),
        ("/v1/messages", {"messages": [], "system": LONG, "max_tokens": 9}),
        ("/v1/responses", {"input": "why?", "instructions": LONG}),
    ],
)
def test_a_long_plain_prompt_may_be_handed_off(path: str, body: object) -> None:
    call = call_of(path, body)
    assert find_obstacle(call, 20) is None
    assert find_work(call) is Work.ANSWER


@pytest.mark.parametrize(
    ("path", "body", "obstacle"),
    [
        ("/generate", {"text": "short"}, Obstacle.SHORT_PROMPT),
        ("/generate", {"text": LONG, "session_params": {"rid": None}}, Obstacle.STICKY),
        ("/generate", {"text": [LONG]}, Obstacle.SEVERAL),
        ("/generate", {"text": LONG, "sampling_params": {"n": 2}}, Obstacle.SEVERAL),
        ("/generate", {"text": LONG, "sampling_params": {"beam_width": 4}}, Obstacle.SEVERAL),
        ("/generate", {"text": LONG, "image_data": "x"}, Obstacle.NO_PLAIN_PROMPT),
        ("/generate", {"input_embeds": [[0.1] * 90]}, Obstacle.NO_PLAIN_PROMPT),
        (
            "/generate",
            {"text": LONG, "return_logprob": True, "logprob_start_len": 0},
            Obstacle.PROMPT_REPORT,
        ),
        ("/generate", {"text": LONG, "return_hidden_states": True}, Obstacle.PROMPT_REPORT),
        ("/generate", {"text": LONG, "sampling_params": {"max_new_tokens": 1}}, Obstacle.ONE_TOKEN),
        ("/v1/completions", {"prompt": [LONG, LONG]}, Obstacle.SEVERAL),
        ("/v1/completions", {"prompt": LONG, "best_of": 3}, Obstacle.SEVERAL),
        ("/v1/completions", {"prompt": LONG, "echo": True, "logprobs": 1}, Obstacle.PROMPT_REPORT),
        (CHAT, chat(LONG, max_completion_tokens=1), Obstacle.ONE_TOKEN),
        (CHAT, chat(LONG, n=3), Obstacle.SEVERAL),
        (
            CHAT,
            chat([{"type": "image_url", "image_url": {"url": LONG}}]),
            Obstacle.NO_PLAIN_PROMPT,
        ),
        (
            "/v1/messages",
            {"messages": [{"role": "user", "content": [{"type": "image", "source": LONG}]}]},
            Obstacle.NO_PLAIN_PROMPT,
        ),
        (
            "/api/chat",
            {"messages": [{"role": "user", "content": LONG, "images": ["aGk="]}]},
            Obstacle.NO_PLAIN_PROMPT,
        ),
        ("/api/generate", {"prompt": LONG, "images": ["aGk="]}, Obstacle.NO_PLAIN_PROMPT),
        ("/v1/responses", {"input": LONG, "background": True}, Obstacle.BACKGROUND),
    ],
)
def test_what_keeps_a_prompt_where_it_is(path: str, body: object, obstacle: Obstacle) -> None:
    assert find_obstacle(call_of(path, body), 20) is obstacle


def test_what_has_an_owner_stays_with_it() -> None:
    owner = Instance(UpstreamSpec("a", "http://a"), "tag")
    call = call_of("/v1/responses", {"input": LONG}, owner=owner)
    assert find_obstacle(call, 20) is Obstacle.STICKY


@pytest.mark.parametrize(
    ("path", "body", "work"),
    [
        ("/generate", {"text": "short"}, Work.ANSWER),
        ("/generate", {"text": LONG, "sampling_params": {"max_new_tokens": 0}}, Work.PROMPT),
        (CHAT, chat(LONG, max_tokens=1), Work.PROMPT),
        ("/v1/embeddings", {"input": LONG}, Work.PROMPT),
        ("/v1/rerank", {"query": "q", "documents": []}, Work.PROMPT),
        ("/v1/audio/transcriptions", None, Work.ANSWER),
        ("/open_session", {"capacity_of_str_len": 9}, Work.ANSWER),
        ("/v1/tokenize", {"prompt": LONG}, Work.ANY),
        ("/v1/models", None, Work.ANY),
    ],
)
def test_requests_go_to_those_who_are_there_for_them(path: str, body: object, work: Work) -> None:
    assert find_work(call_of(path, body)) is work


def test_a_shape_that_is_odd_keeps_nothing_from_being_asked() -> None:
    call = call_of("/v1/completions", {"prompt": LONG})
    assert call.fields is not None
    odd = {**call.fields, "sampling_params": msgspec.Raw(b'"text"')}
    assert find_obstacle(dataclasses.replace(call, fields=odd), 20) is None
