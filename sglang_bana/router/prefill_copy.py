"""What a prefill instance gets of a request: the same prompt, and one token that nobody reads.

Whatever only steers the choice of tokens, or reports on them, is left out: a grammar would have to
be compiled before the prompt is computed, and a lower bound of the answer contradict its limit.
What the prompt is made of stays as the client wrote it, so that both compute the same pages.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import msgspec

from sglang_bana.router.body import Fields
from sglang_bana.router.call import Call

_FIELDS = msgspec.json.Decoder(Fields)
_LEFT_OUT = frozenset(
    {
        "max_new_tokens",
        "max_tokens",
        "max_completion_tokens",
        "max_output_tokens",
        "min_new_tokens",
        "min_tokens",
        "n",
        "best_of",
        "beam_width",
        "echo",
        "include",
        "logit_bias",
        "logprobs",
        "logprob_start_len",
        "top_logprobs",
        "top_logprobs_num",
        "token_ids_logprob",
        "sampling_logprobs_mode",
        "custom_logit_processor",
        "watermark",
        "regex",
        "ebnf",
        "json_schema",
        "structural_tag",
        "response_format",
        "stream_options",
    }
)
_REPORTS = "return_"
# Objects in which the format of an answer is asked for beside what shapes the prompt.
_FORMATTED = ("text", "output_config")
# A tool that has to be called, whichever: the prompt shows the same tools without that.
_FORCED = {b'"required"': b'"auto"', b'"any"': b'"auto"'}


class Form(msgspec.Struct, frozen=True):
    """How one endpoint bounds its answer: the field `limit`, in the object `inside` if that is set.

    `one_token` is its value where one token is computed, `extra` what the copy says besides.
    """

    limit: str
    inside: str = ""
    one_token: int = 1
    extra: Mapping[str, object] = {}


_CHAT = Form("max_completion_tokens")
_OLLAMA = Form("num_predict", inside="options")
FORMS: Mapping[str, Form] = {
    "/generate": Form("max_new_tokens", inside="sampling_params"),
    "/v1/completions": Form("max_tokens"),
    "/v1/chat/completions": _CHAT,
    "/invocations": _CHAT,
    "/v1/messages": Form("max_tokens"),
    # SGLang takes two tokens off this limit, and refuses what is below none. An answer that is
    # thrown away is not kept to be asked for.
    "/v1/responses": Form("max_output_tokens", one_token=3, extra={"store": False}),
    "/api/chat": _OLLAMA,
    "/api/generate": _OLLAMA,
}


def copy_for_prefill(call: Call) -> Call:
    """The call that computes the prompt of `call`, whose endpoint must be one of FORMS."""
    assert call.fields is not None
    form = FORMS[call.endpoint.path]
    fields = _keep_prompt(call.fields)
    holder = fields
    if form.inside:
        holder = _keep_prompt(read_object(call.fields, form.inside) or {})
    holder[form.limit] = _raw(form.one_token)
    if form.inside:
        fields[form.inside] = _raw(holder)
    for name, value in {"stream": False, **form.extra}.items():
        fields[name] = _raw(value)
    return dataclasses.replace(call, fields=fields, body=None, friend=None, keys=())


def read_object(fields: Fields, name: str) -> Fields | None:
    """The object under `name`; None where there is something else, or nothing."""
    raw = fields.get(name)
    try:
        return None if raw is None else _FIELDS.decode(raw)
    except msgspec.DecodeError:
        return None


def _keep_prompt(fields: Fields) -> Fields:
    kept = {
        name: raw
        for name, raw in fields.items()
        if name not in _LEFT_OUT and not name.startswith(_REPORTS)
    }
    for name in _FORMATTED:
        inner = read_object(kept, name)
        if inner is not None and inner.pop("format", None) is not None:
            kept[name] = _raw(inner)
    if "tool_choice" in kept:
        kept["tool_choice"] = _unforce(kept)
    return kept


def _unforce(fields: Fields) -> msgspec.Raw:
    """The `tool_choice` without force, as far as that shows the model the same tools."""
    raw = fields["tool_choice"]
    if bytes(raw) in _FORCED:
        return msgspec.Raw(_FORCED[bytes(raw)])
    chosen = read_object(fields, "tool_choice")
    kind = None if chosen is None else chosen.get("type")
    if chosen is None or kind is None or bytes(kind) not in _FORCED:
        return raw
    return _raw({**chosen, "type": msgspec.Raw(_FORCED[bytes(kind)])})


def _raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))
