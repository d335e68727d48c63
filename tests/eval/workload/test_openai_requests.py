"""Whole requests from a file: sent as they are, in their order, at their times or at others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bana.eval.requests import Message, Phase, Workload
from bana.eval.workload.build import build_workload
from bana.eval.workload.spec_reader import read_workload_spec
from bana.slo.errors import ConfigError

ASKED = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
PROCESS = {"kind": "constant", "rate_rps": 1.0, "duration_s": 3}


def line(**fields: Any) -> dict[str, Any]:
    return {"messages": ASKED, "max_tokens": 7, **fields}


def write(folder: Path, *lines: dict[str, Any]) -> str:
    path = folder / "requests.jsonl"
    path.write_text("\n".join(json.dumps(fields) for fields in lines))
    return str(path)


def replay(path: str, seed: int = 1, **sections: Any) -> Workload:
    mapping = {"arrivals": {"kind": "trace"}, "trace": {"path": path}, **sections}
    return build_workload(read_workload_spec(mapping), seed)


def test_requests_are_due_at_their_times_and_sent_as_they_are(tmp_path: Path) -> None:
    own = {"temperature": 0.5, "tools": [{"type": "function"}]}
    path = write(
        tmp_path,
        line(timestamp=1500, model="other", max_completion_tokens=3, **own),
        line(timestamp=1750, max_tokens=1),
        line(timestamp=3000),
    )

    first, second, third = replay(path).requests

    assert [r.due_s for r in (first, second, third)] == [0.0, 0.25, 1.5]
    assert [r.output_tokens for r in (first, second, third)] == [7, 1, 7]
    assert first.prompt.messages == (Message("system", "be brief"), Message("user", "hello"))
    assert first.extra_body == own
    assert third.extra_body == {}


@pytest.mark.parametrize(
    ("given", "kind", "value"),
    [
        ({"input_ids": [5, 6, 7]}, "token_ids", (5, 6, 7)),
        ({"prompt": [5, 6, 7]}, "token_ids", (5, 6, 7)),
        ({"prompt": "said"}, "text", "said"),
        ({"input_ids": None, "text": "said"}, "text", "said"),
    ],
)
def test_what_would_replace_the_messages_is_the_prompt(
    tmp_path: Path, given: dict[str, Any], kind: str, value: object
) -> None:
    [request] = replay(write(tmp_path, line(timestamp=0, **given))).requests

    assert getattr(request.prompt, kind) == value
    assert request.prompt.messages is None
    assert request.extra_body == {}
    assert request.prompt_tokens == (3 if kind == "token_ids" else 1)


def test_other_arrivals_take_the_first_requests_in_their_order(tmp_path: Path) -> None:
    path = write(tmp_path, *(line(max_tokens=n) for n in range(1, 6)))

    workload = replay(path, arrivals=PROCESS)

    assert [r.output_tokens for r in workload.requests] == [1, 2, 3]
    with pytest.raises(ConfigError, match="no line of this trace has a timestamp"):
        replay(path)
    with pytest.raises(ConfigError, match="has 5 requests"):
        replay(path, arrivals={**PROCESS, "duration_s": 9})


def test_a_fingerprint_covers_the_fields_of_a_request(tmp_path: Path) -> None:
    prints = {
        replay(write(tmp_path, line(timestamp=0, **own))).fingerprint
        for own in ({}, {"top_p": 0.5}, {"top_p": 0.6})
    }
    assert len(prints) == 3


@pytest.mark.parametrize("own", [{"input_ids": list(range(40))}, {"text": "word " * 20}, {}])
def test_warm_up_begins_like_no_request_of_the_window(tmp_path: Path, own: Any) -> None:
    path = write(tmp_path, *(line(**own) for _ in range(3)))

    requests = replay(path, arrivals={**PROCESS, "duration_s": 2, "warmup_s": 1}).requests

    warm = [r.prompt for r in requests if r.phase is Phase.WARMUP]
    cold = [r.prompt for r in requests if r.phase is Phase.WINDOW]
    assert len(warm) == 1
    assert cold[0] == cold[1]
    if cold[0].token_ids is not None and warm[0].token_ids is not None:
        assert len(warm[0].token_ids) == 40
        assert warm[0].token_ids[0] != cold[0].token_ids[0]
        assert list(warm[0].token_ids[8:]) == list(range(8, 40))
    else:
        assert warm[0] != cold[0]


def test_long_ids_are_cut_at_their_end(tmp_path: Path) -> None:
    path = write(tmp_path, line(timestamp=0, input_ids=[3, 4, 5, 6]))

    [request] = replay(path, prompts={"max_input_tokens": 2}).requests

    assert (request.prompt.token_ids, request.prompt_tokens) == ((3, 4), 2)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "Expected `str`"),
        ({"messages": [{"role": "tool", "content": "x", "tool_call_id": "1"}]}, "tool_call_id"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"input_ids": [1, -1]}, "input_ids"),
        ({"input_ids": [1], "prompt": "x"}, "more than one of"),
        ({"stream": False}, "field 'stream'"),
        ({"stream_options": {}}, "field 'stream_options'"),
        ({"timestamp": 500}, "earlier than in the line before"),
        ({"timestamp": None}, "timestamp in some lines only"),
    ],
)
def test_a_line_that_cannot_be_sent_is_named(
    tmp_path: Path, fields: dict[str, Any], said: str
) -> None:
    path = write(tmp_path, line(timestamp=1000), line(timestamp=1000) | fields)

    with pytest.raises(ConfigError) as caught:
        replay(path, trace={"path": path, "format": "openai"})

    assert said in str(caught.value)
    assert "requests.jsonl:2" in str(caught.value)


def test_max_tokens_are_not_guessed(tmp_path: Path) -> None:
    path = write(tmp_path, {"messages": ASKED, "timestamp": 0})

    with pytest.raises(ConfigError, match="missing required field `max_tokens`"):
        replay(path)


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"prompts": {"form": "text"}}, "the trace's prompts are chat"),
        ({"prompts": {"families": {"count": 1, "shared_tokens": 1}}}, "remove the families"),
        ({"trace": {"length_scale": 0.5}}, "length_scale=0.5"),
    ],
)
def test_settings_that_would_change_requests_are_refused(
    tmp_path: Path, sections: dict[str, Any], said: str
) -> None:
    path = write(tmp_path, line(timestamp=0))

    with pytest.raises(ConfigError) as caught:
        replay(path, **{**sections, "trace": {"path": path, **sections.get("trace", {})}})

    assert said in str(caught.value)


def test_prompts_of_several_forms_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, line(timestamp=0), line(timestamp=0, text="x"))

    with pytest.raises(ConfigError, match="prompts as chat, text"):
        replay(path)
