from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bana.eval.client.events import NativeReader, OpenAiReader
from bana.eval.client.plan import ClientPlan, Endpoint
from bana.eval.client.shapes import Shaper
from bana.eval.client.target import Target
from bana.eval.requests import Limits, Message, Offered, Prompt
from bana.slo.errors import ConfigError

IDS = Prompt(token_ids=(5, 6))
TEXT = Prompt(text="hello")
MESSAGES = Prompt(messages=[Message("system", "be brief"), Message("user", "hello")])


def offer(prompt: Prompt, **fields: Any) -> Offered:
    return Offered(0, 0.0, prompt, 2, 7, **fields)


def shaper(endpoint: Endpoint, **changes: Any) -> Shaper:
    return Shaper(ClientPlan(Target("http://h"), endpoint, "m", **changes))


def write(endpoint: Endpoint, offered: Offered) -> tuple[list[str], dict[str, Any]]:
    head, _, body = shaper(endpoint).write(offered, "id-1").partition(b"\r\n\r\n")
    return head.decode().split("\r\n"), msgspec.json.decode(body)


def test_generate_takes_ids_or_text() -> None:
    head, body = write(Endpoint.GENERATE, offer(IDS))

    assert head[0] == "POST /generate HTTP/1.1"
    sampling = {"max_new_tokens": 7, "temperature": 0.0, "ignore_eos": True}
    assert body == {"input_ids": [5, 6], "sampling_params": sampling, "stream": True}
    assert write(Endpoint.GENERATE, offer(TEXT))[1]["text"] == "hello"


@pytest.mark.parametrize(("prompt", "sent"), [(IDS, [5, 6]), (TEXT, "hello")])
def test_completions_take_ids_or_text(prompt: Prompt, sent: object) -> None:
    head, body = write(Endpoint.COMPLETIONS, offer(prompt))

    assert head[0] == "POST /v1/completions HTTP/1.1"
    assert body == {
        "model": "m",
        "prompt": sent,
        "max_tokens": 7,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }


def test_chat_takes_messages_and_text_as_one_of_the_user() -> None:
    head, body = write(Endpoint.CHAT, offer(TEXT))

    assert head[0] == "POST /v1/chat/completions HTTP/1.1"
    assert body["messages"] == [{"role": "user", "content": "hello"}]
    spoken = write(Endpoint.CHAT, offer(MESSAGES))[1]["messages"]
    assert spoken[0] == {"role": "system", "content": "be brief"}


def test_ignore_eos_is_sent_only_when_asked(endpoint: Endpoint) -> None:
    prompt = TEXT
    assert b"ignore_eos" in shaper(endpoint).write(offer(prompt), "a")
    assert b"ignore_eos" not in shaper(endpoint).write(offer(prompt, ignore_eos=False), "a")


def test_promises_travel_as_headers() -> None:
    limits = Limits(ttft_s=0.25, tpot_s=0.0305, e2e_s=9.0)

    head, _ = write(Endpoint.GENERATE, offer(IDS, limits=limits, slo_class="gold"))

    assert "x-request-id: id-1" in head
    assert "x-llm-d-slo-ttft-ms: 250" in head
    assert "x-llm-d-slo-tpot-ms: 30.5" in head
    assert "x-bana-slo-e2e-ms: 9000" in head
    assert "x-bana-slo-class: gold" in head


def test_what_is_not_promised_is_not_said() -> None:
    head, _ = write(Endpoint.GENERATE, offer(IDS))

    assert not [line for line in head if "slo" in line]


def test_answers_are_read_as_the_endpoint_gives_them() -> None:
    assert isinstance(shaper(Endpoint.GENERATE).reader(), NativeReader)
    assert isinstance(shaper(Endpoint.CHAT).reader(), OpenAiReader)


@pytest.mark.parametrize(
    ("endpoint", "prompt", "reason"),
    [
        (Endpoint.CHAT, IDS, "generate or completions"),
        (Endpoint.GENERATE, MESSAGES, "endpoint chat"),
        (Endpoint.COMPLETIONS, MESSAGES, "endpoint chat"),
        (Endpoint.GENERATE, Prompt(), "exactly one kind"),
        (Endpoint.GENERATE, Prompt(token_ids=[]), "exactly one kind"),
        (Endpoint.GENERATE, Prompt(token_ids=[1], text="x"), "exactly one kind"),
    ],
)
def test_a_prompt_that_cannot_be_sent_is_refused(
    endpoint: Endpoint, prompt: Prompt, reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        shaper(endpoint).check([offer(prompt)])


@pytest.mark.parametrize("name", ["", " ", "a\r\nb: c", "größer"])
def test_a_class_that_is_no_header_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="SLO class"):
        shaper(Endpoint.GENERATE).check([offer(IDS, slo_class=name)])
