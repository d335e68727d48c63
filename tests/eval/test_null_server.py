from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from bana.eval.client.self_test import null_server


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with null_server(100.0) as target:
        yield target.url


def ask(url: str, body: Any = None) -> bytes:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        found: bytes = answer.read()
        return found


def events(body: bytes) -> list[Any]:
    *parts, done, rest = body.split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    return [json.loads(part.removeprefix(b"data: ")) for part in parts]


def test_native_streams_count_tokens(url: str) -> None:
    body = {"input_ids": [1], "sampling_params": {"max_new_tokens": 3}, "stream": True}

    found = events(ask(f"{url}/generate", body))

    assert [event["meta_info"]["completion_tokens"] for event in found] == [1, 2, 3]
    assert found[-1]["meta_info"]["finish_reason"] == {"type": "length"}


@pytest.mark.parametrize("limit", ["max_tokens", "max_completion_tokens"])
def test_chat_and_completions_have_an_event_a_token(url: str, limit: str) -> None:
    chat = events(ask(f"{url}/v1/chat/completions", {limit: 2, "stream": True}))
    text = events(ask(f"{url}/v1/completions", {limit: 2, "stream": True}))

    assert [event["choices"][0]["delta"]["content"] for event in chat] == [" more"] * 2
    assert [event["choices"][0]["text"] for event in text] == [" more"] * 2
    assert chat[-1]["choices"][0]["finish_reason"] == "stop"


def test_without_a_stream_the_answer_is_whole(url: str) -> None:
    whole = json.loads(ask(f"{url}/v1/chat/completions", {"max_tokens": 1}))
    native = json.loads(ask(f"{url}/generate", {"text": "x"}))

    assert whole["choices"][0]["message"]["content"] == " end"
    assert native["meta_info"]["completion_tokens"] == 1


def test_routers_find_what_they_probe_for(url: str) -> None:
    assert json.loads(ask(f"{url}/v1/models"))["data"][0]["id"] == "null"
    assert json.loads(ask(f"{url}/server_info"))["is_generation"] is True
    assert len(json.loads(ask(f"{url}/v1/loads?include=core"))["loads"]) == 1
