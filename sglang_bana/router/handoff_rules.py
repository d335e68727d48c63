"""What a request asks of instances, and what keeps its prompt from being handed off."""

from __future__ import annotations

import re
from enum import StrEnum

from bana.slo.roles import Work
from sglang_bana.router.body import Fields
from sglang_bana.router.call import Call
from sglang_bana.router.endpoints import Media
from sglang_bana.router.prefill_copy import FORMS, read_object

# What decodes without a prompt that could be handed off: a session stays where it is opened.
_ALSO_DECODE = frozenset({"/open_session"})
_MEDIA_FIELDS = ("input_embeds", "image_data", "video_data", "audio_data", "images", "audio_url")
# The type of a message's part, and Ollama's pictures; within text, quotes are escaped.
_MEDIA_PART = re.compile(rb'"type"\s*:\s*"(?:input_)?(?:image|video|audio|file)(?:_url)?"')
_MEDIA_LIST = re.compile(rb'"images"\s*:\s*\[\s*"')
# They report on every token of the prompt, so its pages are of no use to whoever answers.
_PROMPT_REPORTS = ("return_hidden_states", "return_routed_experts", "return_indexer_topk")
_UNSET = frozenset({b"null", b"false", b"0", b"[]", b"{}", b'""'})


class Obstacle(StrEnum):
    """Why the prompt of a request was not handed off."""

    RETRY = "retry"
    STICKY = "sticky"
    ONE_TOKEN = "one_token"
    SHORT_PROMPT = "short_prompt"
    SEVERAL = "several"
    NO_PLAIN_PROMPT = "no_plain_prompt"
    PROMPT_REPORT = "prompt_report"
    BACKGROUND = "background"
    FOREIGN = "foreign"
    STORE_SILENT = "store_silent"
    NO_DECODER = "no_decoder"
    NO_PREFILLER = "no_prefiller"
    APART = "apart"
    PREFILLERS_FULL = "prefillers_full"
    ANSWERER_NEARER = "answerer_nearer"


def find_work(call: Call) -> Work:
    """What the instance that gets `call` has to do; O(1)."""
    endpoint = call.endpoint
    if endpoint.path in FORMS:
        return Work.PROMPT if has_one_token(call) else Work.ANSWER
    if endpoint.media is Media.OPAQUE or endpoint.path in _ALSO_DECODE:
        return Work.ANSWER
    return Work.PROMPT if endpoint.is_promised else Work.ANY


def has_one_token(call: Call) -> bool:
    """Whether its answer ends with what its prompt's computation brings, so that none decodes."""
    return 0 <= call.shape.output_tokens <= 1


def find_obstacle(call: Call, min_prompt_tokens: int) -> Obstacle | None:
    """What in `call` itself keeps its prompt from being handed off; O(bytes of the prompt)."""
    fields, shape = call.fields, call.shape
    if fields is None or shape.prompt_tokens < min_prompt_tokens:
        return Obstacle.SHORT_PROMPT
    if call.owner is not None or _is_set(fields, "session_params"):
        return Obstacle.STICKY
    if has_one_token(call):
        return Obstacle.ONE_TOKEN
    if _has_media(call, fields):
        return Obstacle.NO_PLAIN_PROMPT
    if shape.items is not None or shape.samples > 1 or _is_searched(fields):
        return Obstacle.SEVERAL
    if _reports_prompt(fields):
        return Obstacle.PROMPT_REPORT
    return Obstacle.BACKGROUND if _is_set(fields, "background") else None


def _is_searched(fields: Fields) -> bool:
    """Whether several answers are computed of which the client sees one."""
    sampling = read_object(fields, "sampling_params") or {}
    given = (fields.get("best_of"), sampling.get("beam_width"))
    return any(raw is not None and bytes(raw) not in (b"null", b"1") for raw in given)


def _has_media(call: Call, fields: Fields) -> bool:
    if any(_is_set(fields, name) for name in _MEDIA_FIELDS):
        return True
    return any(pattern.search(call.prompt) for pattern in (_MEDIA_PART, _MEDIA_LIST))


def _reports_prompt(fields: Fields) -> bool:
    if any(_is_set(fields, name) for name in _PROMPT_REPORTS):
        return True
    if _is_set(fields, "echo") and "logprobs" in fields:
        return True
    start = bytes(fields.get("logprob_start_len", b"null"))
    return _is_set(fields, "return_logprob") and start not in (b"null", b"-1")


def _is_set(fields: Fields, name: str) -> bool:
    raw = fields.get(name)
    return raw is not None and bytes(raw) not in _UNSET
