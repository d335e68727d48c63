"""Lines that bench_serving reads as its dataset `openai`, and that come back as they were."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bana.eval.client.plan import Endpoint
from bana.eval.export.requests import write_requests
from bana.eval.requests import Message, Offered, Phase, Prompt, Workload
from bana.eval.workload.build import build_workload
from bana.eval.workload.spec_reader import read_workload_spec
from bana.slo.errors import ConfigError

IDS = Prompt(token_ids=(5, 6))
TEXT = Prompt(text="hello")
MESSAGES = Prompt(messages=(Message("system", "be brief"), Message("user", "hello")))
SAID = [{"role": "user", "content": "hello"}]


def workload(*prompts: Prompt, **fields: Any) -> Workload:
    requests = [Offered(i, 0.5 * i, p, 2, 7 + i, **fields) for i, p in enumerate(prompts)]
    return Workload(tuple(requests), 10.0, 0, "", {})


def export(folder: Path, given: Workload, endpoint: Endpoint) -> list[dict[str, Any]]:
    path = folder / f"{endpoint}.jsonl"
    write_requests(given, endpoint, path)
    # As a reader of the file would have it: other ends of lines stand within a line.
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


@pytest.mark.parametrize(
    ("endpoint", "prompt", "replacing"),
    [
        (Endpoint.GENERATE, IDS, {"input_ids": [5, 6]}),
        (Endpoint.GENERATE, TEXT, {"input_ids": None, "text": "hello"}),
        (Endpoint.COMPLETIONS, IDS, {"prompt": [5, 6]}),
        (Endpoint.COMPLETIONS, TEXT, {"prompt": "hello"}),
        (Endpoint.CHAT, TEXT, {}),
        (Endpoint.CHAT, MESSAGES, {}),
    ],
)
def test_a_line_has_what_replaces_the_messages_in_the_body(
    tmp_path: Path, endpoint: Endpoint, prompt: Prompt, replacing: dict[str, Any]
) -> None:
    first, second = export(tmp_path, workload(prompt, prompt), endpoint)

    said = first.pop("messages")
    assert first == {"max_tokens": 7, "timestamp": 0.0, **replacing}
    assert (second["max_tokens"], second["timestamp"]) == (8, 500.0)
    if prompt is TEXT:
        assert said == SAID
    elif prompt is MESSAGES:
        assert said == [{"role": "system", "content": "be brief"}, *SAID]
    else:
        assert said


@pytest.mark.parametrize(
    ("endpoint", "prompts"),
    [
        (Endpoint.GENERATE, {}),
        (Endpoint.COMPLETIONS, {}),
        (Endpoint.GENERATE, {"form": "text"}),
        (Endpoint.COMPLETIONS, {"form": "text"}),
        (Endpoint.CHAT, {"form": "chat"}),
    ],
)
def test_what_was_written_is_read_again(
    tmp_path: Path, endpoint: Endpoint, prompts: dict[str, Any]
) -> None:
    lengths = {
        "input_tokens": {"kind": "uniform", "low": 4, "high": 30},
        "output_tokens": {"kind": "uniform", "low": 1, "high": 9},
    }
    arrivals = {"kind": "bench_serving", "rate_rps": 5.0, "duration_s": 6}
    spec = {"arrivals": arrivals, "prompts": {**lengths, **prompts}}
    first = build_workload(read_workload_spec(spec), 3)
    path = tmp_path / "requests.jsonl"
    write_requests(first, endpoint, path)

    replayed = {"arrivals": {"kind": "trace"}, "trace": {"path": str(path)}}
    second = build_workload(read_workload_spec(replayed), 4)

    assert len(first.requests) == len(second.requests) > 15
    for ours, read in zip(first.requests, second.requests, strict=True):
        assert read.due_s == pytest.approx(ours.due_s, abs=1e-9)
        assert show(read.prompt) == show(ours.prompt)
        assert read.output_tokens == ours.output_tokens
        assert read.ignore_eos is ours.ignore_eos


def show(prompt: Prompt) -> object:
    """What is asked, however it is kept."""
    ids = None if prompt.token_ids is None else list(prompt.token_ids)
    return ids, prompt.text, prompt.messages


def test_fields_of_a_request_are_kept(tmp_path: Path) -> None:
    [line] = export(tmp_path, workload(TEXT, extra_body={"top_p": 0.5}), Endpoint.CHAT)
    assert line["top_p"] == 0.5


def test_what_bench_serving_cannot_offer_is_refused_and_nothing_written(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    refused = [
        (workload(IDS, phase=Phase.WARMUP), Endpoint.GENERATE, "arrivals.warmup_s=0"),
        (workload(IDS, phase=Phase.COOLDOWN), Endpoint.GENERATE, "arrivals.cooldown_s=0"),
        (workload(IDS, cancel_after_s=1.0), Endpoint.GENERATE, "remove workload.cancel"),
        (workload(IDS), Endpoint.CHAT, "cannot send a prompt of token ids"),
        (workload(MESSAGES), Endpoint.GENERATE, "cannot send a prompt of messages"),
    ]
    for given, endpoint, said in refused:
        with pytest.raises(ConfigError, match=said):
            write_requests(given, endpoint, path)
    assert not path.exists()


def test_no_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text("mine")
    with pytest.raises(ConfigError, match="exists already"):
        write_requests(workload(IDS), Endpoint.GENERATE, path)
    with pytest.raises(ConfigError, match="cannot be written"):
        write_requests(workload(IDS), Endpoint.GENERATE, tmp_path / "none" / "requests.jsonl")
    assert path.read_text() == "mine"


def test_a_line_is_json_whatever_the_text(tmp_path: Path) -> None:
    strange = Prompt(text='"quoted"\n\u2028 é')
    [line] = export(tmp_path, workload(strange), Endpoint.GENERATE)
    assert line["text"] == strange.text
    assert msgspec.json.decode((tmp_path / "generate.jsonl").read_bytes()) == line
