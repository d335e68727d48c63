"""How a request looks on the wire: body and headers, for each endpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from bana.eval.client.events import NativeReader, OpenAiReader, Reader
from bana.eval.client.plan import ClientPlan, Endpoint
from bana.eval.client.target import Writer
from bana.eval.requests import DEFAULT_CLASS, Limits, Offered, Prompt
from bana.slo.errors import ConfigError

TTFT_HEADER = "x-llm-d-slo-ttft-ms"
TPOT_HEADER = "x-llm-d-slo-tpot-ms"
E2E_HEADER = "x-bana-slo-e2e-ms"
CLASS_HEADER = "x-bana-slo-class"
ID_HEADER = "x-request-id"

Body = dict[str, object]


class Shaper:
    """Writes the requests of one run, and gives the readers of their answers."""

    def __init__(self, plan: ClientPlan) -> None:
        self._plan = plan
        self._writer = Writer(plan.target, plan.headers)
        self._build = _BUILDERS[plan.endpoint]
        self._path = plan.endpoint.path

    def write(self, offered: Offered, request_id: str) -> bytes:
        """The bytes of one request; O(length of its prompt)."""
        body = {**self._build(offered, self._plan), **offered.extra_body}
        payload = msgspec.json.encode(body)
        headers = f"{ID_HEADER}: {request_id}\r\n" + render_slo(offered.slo_class, offered.limits)
        return self._writer.post(self._path, payload, headers)

    def reader(self) -> Reader:
        """A reader for the answer to one request."""
        return NativeReader() if self._plan.endpoint is Endpoint.GENERATE else OpenAiReader()

    def check(self, requests: Sequence[Offered]) -> None:
        """ConfigError when one of them cannot be sent to this endpoint, or not as a header."""
        for offered in requests:
            check_prompt(offered.prompt, self._plan.endpoint)
        for slo_class in {offered.slo_class for offered in requests}:
            if not slo_class.isascii() or not slo_class.isprintable() or not slo_class.strip():
                raise ConfigError(f"SLO class {slo_class!r} cannot be a header: use visible ASCII")


def render_slo(slo_class: str, limits: Limits) -> str:
    """The header lines that tell a server what this request was promised."""
    lines = ""
    if limits.ttft_s is not None:
        lines += f"{TTFT_HEADER}: {limits.ttft_s * 1e3:.10g}\r\n"
    if limits.tpot_s is not None:
        lines += f"{TPOT_HEADER}: {limits.tpot_s * 1e3:.10g}\r\n"
    if limits.e2e_s is not None:
        lines += f"{E2E_HEADER}: {limits.e2e_s * 1e3:.10g}\r\n"
    if slo_class != DEFAULT_CLASS:
        lines += f"{CLASS_HEADER}: {slo_class}\r\n"
    return lines


def check_prompt(prompt: Prompt, endpoint: Endpoint) -> None:
    """ConfigError when a prompt of this kind cannot be sent there."""
    given = {
        "token ids": prompt.token_ids,
        "text": prompt.text,
        "messages": prompt.messages,
    }
    kinds = [name for name, value in given.items() if value is not None]
    if len(kinds) != 1 or not len(given[kinds[0]] or ()):
        raise ConfigError(
            f"a prompt has {kinds or 'nothing'}; allowed: exactly one kind, not empty"
        )
    kind = kinds[0]
    if (endpoint is Endpoint.CHAT) is (kind == "messages") or kind == "text":
        return
    other = "generate or completions" if kind == "token ids" else "chat"
    raise ConfigError(
        f"endpoint {endpoint} cannot send a prompt of {kind}: use the endpoint {other}"
    )


def _build_generate(offered: Offered, plan: ClientPlan) -> Body:
    sampling: Body = {
        "max_new_tokens": offered.output_tokens,
        "temperature": plan.temperature,
    }
    if offered.ignore_eos:
        sampling["ignore_eos"] = True
    prompt = offered.prompt
    asked = {"text": prompt.text} if prompt.token_ids is None else {"input_ids": _ids(prompt)}
    return {**asked, "sampling_params": sampling, "stream": True}


def _build_completion(offered: Offered, plan: ClientPlan) -> Body:
    prompt = offered.prompt
    asked = prompt.text if prompt.token_ids is None else _ids(prompt)
    return {"model": plan.model, "prompt": asked, **_common(offered, plan)}


def _build_chat(offered: Offered, plan: ClientPlan) -> Body:
    prompt = offered.prompt
    text: object = [{"role": "user", "content": prompt.text}]
    messages = text if prompt.messages is None else list(prompt.messages)
    return {"model": plan.model, "messages": messages, **_common(offered, plan)}


def _common(offered: Offered, plan: ClientPlan) -> Body:
    common: Body = {
        "max_tokens": offered.output_tokens,
        "temperature": plan.temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    # Not OpenAI's: sent only to servers from which it is wanted.
    return {**common, "ignore_eos": True} if offered.ignore_eos else common


def _ids(prompt: Prompt) -> list[int]:
    ids = prompt.token_ids
    assert ids is not None
    return ids if isinstance(ids, list) else [int(token) for token in ids]


_BUILDERS: dict[Endpoint, Callable[[Offered, ClientPlan], Body]] = {
    Endpoint.GENERATE: _build_generate,
    Endpoint.COMPLETIONS: _build_completion,
    Endpoint.CHAT: _build_chat,
}
