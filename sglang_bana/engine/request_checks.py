"""Would this request end the scheduler? SGLang checks most of a request, and dies of the rest.

What one request says reaches the tensors of its whole batch. An id that is no row of the embedding
or no column of the logits, a number that overflows, a prompt without tokens raise there, and the
scheduler ends with all its requests. SGLang itself checks types, most ranges, `token_ids_logprob`
and the ids of `logit_bias`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sized
from types import SimpleNamespace
from typing import Any, SupportsIndex

TARGET = "sglang.srt.managers.tokenizer_manager.TokenizerManager._validate_one_request"
MAX_TOP_K = 2**31 - 1
# Logits are divided by penalty and temperature, which SGLang keeps from 1e-6 on, in 32 bits.
MAX_BIAS = 1e30
MIN_REPETITION_PENALTY = 1e-20


class DeadlyRequestError(ValueError):
    """A request that the scheduler would not survive; SGLang answers it with 400."""


def register_check() -> None:
    """Have SGLang run `check_request` before its own checks of each request."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(TARGET, check_request, HookType.BEFORE)


def check_request(manager: Any, obj: Any, input_ids: Sized | None) -> None:
    """DeadlyRequestError at the first thing in `obj`, one request, that would end the scheduler.

    Takes what SGLang's check takes. `input_ids` may be SGLang's own work on text or media: that it
    is not empty is all that is judged of it. O(ids).
    """
    _check_prompt(obj, input_ids)
    config = manager.model_config
    placeholders = _find_placeholders(manager, obj)
    if obj.input_ids is not None and placeholders is not None:
        _check_ids("input_ids", obj.input_ids, _count_embedded(config), placeholders)
    _check_sampling(obj.sampling_params, config.vocab_size)
    _check_most("top_logprobs_num", getattr(obj, "top_logprobs_num", None), config.vocab_size)
    if _is_json(getattr(obj, "positional_embed_overrides", None)):
        raise DeadlyRequestError(
            "positional_embed_overrides is for SGLang's own use within a process; leave it out"
        )


def is_refusing() -> bool:
    """Whether SGLang refuses an unknown token in this process: it is asked about one."""
    from sglang.srt.managers.tokenizer_manager import TokenizerManager

    config = SimpleNamespace(vocab_size=1, hf_text_config=SimpleNamespace(vocab_size=1))
    manager = SimpleNamespace(model_config=config, mm_processor=None)
    unknown = SimpleNamespace(input_ids=[1], input_embeds=None, session_params=None)
    try:
        TokenizerManager._validate_one_request(manager, unknown, [1])
    except Exception as error:
        # Anything else that SGLang finds wrong with the stand-ins was found by its own checks.
        return isinstance(error, DeadlyRequestError)
    return False


def _count_embedded(config: Any) -> int:
    """How many tokens a prompt may consist of; a few models can put out fewer than that."""
    return max(config.vocab_size, getattr(config.hf_text_config, "vocab_size", 0))


def _find_placeholders(manager: Any, obj: Any) -> frozenset[int] | None:
    """Ids that stand for the media of `obj`, wherever they lie; None where the model hides them."""
    if manager.mm_processor is None or not obj.contains_mm_input():
        return frozenset()
    tokens = getattr(manager.mm_processor, "mm_tokens", None)
    if tokens is None:
        return None
    ids = (tokens.image_token_id, tokens.video_token_id, tokens.audio_token_id)
    return frozenset(token for token in ids if isinstance(token, int))


def _check_prompt(obj: Any, input_ids: Sized | None) -> None:
    if input_ids is None or len(input_ids) or obj.input_embeds is not None:
        return
    # A session goes on from what it has.
    if not getattr(obj, "session_params", None):
        raise DeadlyRequestError("the prompt has no token, allowed is at least one; send some text")


def _check_sampling(sampling: Mapping[str, Any], vocabulary_tokens: int) -> None:
    _check_ids("stop_token_ids", sampling.get("stop_token_ids") or (), vocabulary_tokens)
    _check_most("top_k", sampling.get("top_k"), MAX_TOP_K)
    bias = sampling.get("logit_bias")
    for token, value in bias.items() if isinstance(bias, dict) else ():
        _check_most(f"logit_bias of {token}", value, MAX_BIAS)
        _check_least(f"logit_bias of {token}", value, -MAX_BIAS)
    _check_least("repetition_penalty", sampling.get("repetition_penalty"), MIN_REPETITION_PENALTY)


def _check_ids(
    name: str, ids: Iterable[Any], count: int, placeholders: frozenset[int] = frozenset()
) -> None:
    for token in ids:
        is_id = type(token) is int or isinstance(token, SupportsIndex)
        if not is_id or not (0 <= token < count or token in placeholders):
            raise DeadlyRequestError(
                f"{name} has {token!r}, which is no token of this model; allowed are ids from 0 to "
                f"{count - 1}. Take them from this model's own tokenizer"
            )


def _check_most(name: str, value: Any, most: float) -> None:
    if isinstance(value, int | float) and value > most:
        raise DeadlyRequestError(f"{name} is {value}, allowed are at most {most}; lower it")


def _check_least(name: str, value: Any, least: float) -> None:
    if isinstance(value, int | float) and value < least:
        raise DeadlyRequestError(f"{name} is {value}, allowed are at least {least}; raise it")


def _is_json(value: object) -> bool:
    """Whether `value` came in a body, rather than from SGLang's own code."""
    return isinstance(value, dict | list | str | int | float)
