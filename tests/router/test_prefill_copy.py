"""The copy that computes a prompt has the same prompt, one token, and nothing that steers it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_bana.router.body import estimate_shape, parse_fields, read_prompt
from sglang_bana.router.call import Attempt, Call
from sglang_bana.router.endpoints import TABLE, find_endpoint
from sglang_bana.router.prefill_copy import FORMS, copy_for_prefill

CHAT = "/v1/chat/completions"
RID = "0123456789ab8cdef0123456789abcde"


def call_of(path: str, body: object) -> Call:
    endpoint = find_endpoint(path)
    assert endpoint is not None
    fields = parse_fields(json.dumps(body).encode())
    prompt = read_prompt(fields, endpoint)
    shape = estimate_shape(fields, endpoint, prompt)
    return Call(endpoint, "POST", path, {}, None, fields, shape, prompt, keys=(b"k",))


def copy_of(path: str, body: object) -> Any:
    """The body of the copy."""
    copy = copy_for_prefill(call_of(path, body))
    assert copy.fields is not None
    return json.loads(
        b"{"
        + b",".join(
            json.dumps(name).encode() + b":" + bytes(raw) for name, raw in copy.fields.items()
        )
        + b"}"
    )


MESSAGES = [{"role": "user", "content": 'a "quoted" \u00e9 prompt'}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"regex": "x", "n": 3}}}]


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        (
            "/generate",
            {
                "input_ids": [1, 2, 3],
                "stream": True,
                "return_logprob": True,
                "top_logprobs_num": 4,
                "lora_path": "l",
                "sampling_params": {
                    "max_new_tokens": 90,
                    "min_new_tokens": 9,
                    "regex": "a+",
                    "temperature": 0.5,
                    "custom_params": {"own": 1},
                },
            },
            {
                "input_ids": [1, 2, 3],
                "stream": False,
                "lora_path": "l",
                "sampling_params": {
                    "max_new_tokens": 1,
                    "temperature": 0.5,
                    "custom_params": {"own": 1},
                },
            },
        ),
        (
            "/generate",
            {"text": "p"},
            {"text": "p", "stream": False, "sampling_params": {"max_new_tokens": 1}},
        ),
        (
            "/v1/completions",
            {"prompt": "p", "suffix": "s", "max_tokens": 9, "echo": True, "logprobs": 2},
            {"prompt": "p", "suffix": "s", "max_tokens": 1, "stream": False},
        ),
        (
            CHAT,
            {
                "messages": MESSAGES,
                "tools": TOOLS,
                "tool_choice": "required",
                "max_tokens": 9,
                "max_completion_tokens": 8,
                "stream": True,
                "stream_options": {"include_usage": True},
                "response_format": {"type": "json_object"},
                "chat_template_kwargs": {"enable_thinking": False},
                "cache_salt": "s",
                "n": 1,
            },
            {
                "messages": MESSAGES,
                "tools": TOOLS,
                "tool_choice": "auto",
                "max_completion_tokens": 1,
                "stream": False,
                "chat_template_kwargs": {"enable_thinking": False},
                "cache_salt": "s",
            },
        ),
        (
            "/invocations",
            {"messages": MESSAGES, "tool_choice": {"type": "function", "function": {"name": "f"}}},
            {
                "messages": MESSAGES,
                "tool_choice": {"type": "function", "function": {"name": "f"}},
                "max_completion_tokens": 1,
                "stream": False,
            },
        ),
        (
            "/v1/messages",
            {
                "messages": MESSAGES,
                "system": "s",
                "max_tokens": 50,
                "stream": True,
                "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
                "output_config": {"effort": "low", "format": {"type": "json_schema"}},
            },
            {
                "messages": MESSAGES,
                "system": "s",
                "max_tokens": 1,
                "stream": False,
                "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
                "output_config": {"effort": "low"},
            },
        ),
        (
            "/v1/responses",
            {
                "input": "p",
                "instructions": "i",
                "max_output_tokens": 70,
                "store": True,
                "include": ["message.output_text.logprobs"],
                "text": {"format": {"type": "json_object"}, "verbosity": "low"},
            },
            {
                "input": "p",
                "instructions": "i",
                "max_output_tokens": 3,
                "store": False,
                "stream": False,
                "text": {"verbosity": "low"},
            },
        ),
        (
            "/api/chat",
            {"messages": MESSAGES, "options": {"num_predict": 30, "temperature": 0}},
            {
                "messages": MESSAGES,
                "stream": False,
                "options": {"num_predict": 1, "temperature": 0},
            },
        ),
        (
            "/api/generate",
            {"prompt": "p", "system": "s"},
            {"prompt": "p", "system": "s", "stream": False, "options": {"num_predict": 1}},
        ),
    ],
)
def test_a_copy_keeps_the_prompt_and_asks_for_one_token(
    path: str, body: object, expected: object
) -> None:
    assert copy_of(path, body) == expected


def test_a_copy_takes_its_own_id_and_leaves_the_call_as_it_was() -> None:
    call = call_of(CHAT, {"messages": MESSAGES, "rid": "own", "max_tokens": 5})
    copy = copy_for_prefill(call)
    attempt = Attempt(copy, RID, {"bana_handoff": "prefill"}, {})
    assert attempt.message.body is not None
    sent = json.loads(attempt.message.body)
    assert (sent["rid"], attempt.rids) == (RID, (RID,))
    assert sent["custom_params"] == {"bana_handoff": "prefill"}
    assert (copy.keys, copy.prompt) == ((), call.prompt)
    assert call.fields is not None
    assert (bytes(call.fields["max_tokens"]), bytes(call.fields["rid"])) == (b"5", b'"own"')


def test_every_endpoint_with_a_form_is_one_of_the_table() -> None:
    rows = {row.path: row for row in TABLE}
    assert all(rows[path].prompt_fields for path in FORMS)


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
_NAMES = st.sampled_from(
    ["stream", "n", "text", "tool_choice", "options", "sampling_params", "output_config", "regex"]
)


@given(path=st.sampled_from(sorted(FORMS)), extra=st.dictionaries(_NAMES, _VALUES), prompt=_VALUES)
def test_whatever_a_body_holds_its_prompt_stays_byte_for_byte(
    path: str, extra: dict[str, object], prompt: object
) -> None:
    endpoint = find_endpoint(path)
    assert endpoint is not None
    name = endpoint.prompt_fields[-1]
    fields = parse_fields(json.dumps({**extra, name: prompt}).encode())
    kept = dict(fields)
    call = Call(endpoint, "POST", path, {}, None, fields, call_of(path, {}).shape, b"")
    copy = copy_for_prefill(call)
    assert copy.fields is not None
    assert bytes(copy.fields[name]) == bytes(fields[name])
    assert bytes(copy.fields["stream"]) == b"false"
    form = FORMS[path]
    holder = json.loads(bytes(copy.fields[form.inside])) if form.inside else None
    limit = int(bytes(copy.fields[form.limit])) if holder is None else holder[form.limit]
    assert limit == form.one_token
    assert fields == kept
