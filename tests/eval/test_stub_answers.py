from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest

from bana.eval.stub import StubSettings
from bana.eval.stub_answers import (
    Script,
    plan_script,
    read_asked,
    render_events,
    render_usage,
    render_whole,
)

SETTINGS = StubSettings(chunks=3, first_delay_s=0.5, chunk_interval_s=0.25)
PATHS = ("/generate", "/v1/completions", "/v1/chat/completions")


def decode(event: bytes) -> Any:
    return msgspec.json.decode(event.removeprefix(b"data: "))


def test_times_are_those_of_the_settings() -> None:
    script = plan_script({}, {"max_tokens": 9}, SETTINGS)

    assert list(script.times_s()) == [0.5, 0.75, 1.0]
    assert script.last_s == 1.0


def test_a_length_is_honoured_when_wanted() -> None:
    settings = msgspec.structs.replace(SETTINGS, is_length_honoured=True)

    assert plan_script({}, {"max_tokens": 5}, settings).tokens == 5
    assert plan_script({}, {}, settings).tokens == 3


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({"x-stub-gaps-s": "0.1, 0.2,0.3"}, {}),
        ({}, {"stub_gaps_s": [0.1, 0.2, 0.3]}),
        ({"x-stub-gaps-s": "0.1,0.2,0.3"}, {"stub_gaps_s": [9]}),
    ],
)
def test_a_request_scripts_its_own_times(headers: dict[str, str], body: dict[str, Any]) -> None:
    script = plan_script(headers, body, SETTINGS)

    assert list(script.times_s()) == pytest.approx([0.1, 0.3, 0.6])
    assert script.last_s == pytest.approx(0.6)


@pytest.mark.parametrize(
    "body",
    [
        {"max_tokens": 4},
        {"max_completion_tokens": 4},
        {"sampling_params": {"max_new_tokens": 4}},
    ],
)
def test_asked_lengths_of_every_endpoint(body: dict[str, Any]) -> None:
    assert read_asked(body) == 4


def test_times_of_millions_cost_nothing_until_they_are_due() -> None:
    script = Script(1.0, 10**9, gap_s=0.5)

    assert list(itertools.islice(script.times_s(), 2)) == [1.0, 1.5]


def test_native_events_count_their_tokens() -> None:
    events = [decode(e) for e in render_events("/generate", {"rid": "r"}, Script(0.0, 3), "s")]

    assert [e["meta_info"]["completion_tokens"] for e in events] == [1, 2, 3]
    assert [e["text"] for e in events] == ["x", "xx", "xxx"]
    assert events[-1]["meta_info"]["finish_reason"] == {"type": "length", "length": 3}


@pytest.mark.parametrize("path", PATHS)
def test_usage_is_told_where_it_is_asked_for(path: str) -> None:
    asked = {"stream_options": {"include_usage": True}}

    told = render_usage(path, asked, Script(0.0, 3), "s")

    assert render_usage(path, {}, Script(0.0, 3), "s") == b""
    if path == "/generate":
        assert told == b""
    else:
        assert decode(told)["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("path", PATHS)
def test_whole_answers_have_all_tokens(path: str) -> None:
    whole: Any = render_whole(path, {}, Script(0.0, 3), "s")
    told = whole["meta_info"] if path == "/generate" else whole["usage"]

    assert told["completion_tokens"] == 3
