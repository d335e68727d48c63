"""Does the model know the token ids that a request names? SGLang's scheduler dies of others.

SGLang itself checks `token_ids_logprob` and `logit_bias`. It hands `input_ids` on to the embedding,
and `stop_token_ids` to the penalties of the whole batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, SupportsIndex

TARGET = "sglang.srt.managers.tokenizer_manager.TokenizerManager._validate_one_request"


class UnknownTokenError(ValueError):
    """A request names a token that the model does not have; SGLang answers with 400."""


def register_check() -> None:
    """Have SGLang run `check_token_ids` before its own checks of each request."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(TARGET, check_token_ids, HookType.BEFORE)


def check_token_ids(manager: Any, obj: Any, input_ids: object) -> None:
    """UnknownTokenError at the first id in `obj`, one request, that the model does not have.

    Takes what SGLang's check takes; `input_ids` may be SGLang's own work on text or media, which is
    not judged. O(ids).
    """
    config = manager.model_config
    placeholders = _find_placeholders(manager, obj)
    if obj.input_ids is not None and placeholders is not None:
        _check_ids("input_ids", obj.input_ids, _count_embedded(config), placeholders)
    stop_ids = obj.sampling_params.get("stop_token_ids")
    if stop_ids is not None:
        _check_ids("stop_token_ids", stop_ids, config.vocab_size, frozenset())


def is_refusing() -> bool:
    """Whether SGLang refuses an unknown token in this process: it is asked about one."""
    from sglang.srt.managers.tokenizer_manager import TokenizerManager

    config = SimpleNamespace(vocab_size=1, hf_text_config=SimpleNamespace(vocab_size=1))
    manager = SimpleNamespace(model_config=config, mm_processor=None)
    try:
        TokenizerManager._validate_one_request(manager, SimpleNamespace(input_ids=[1]), [1])
    except Exception as error:
        # Anything else that SGLang finds wrong with the stand-ins was found by its own checks.
        return isinstance(error, UnknownTokenError)
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


def _check_ids(name: str, ids: Iterable[Any], count: int, placeholders: frozenset[int]) -> None:
    for token in ids:
        is_id = type(token) is int or isinstance(token, SupportsIndex)
        if not is_id or not (0 <= token < count or token in placeholders):
            raise UnknownTokenError(
                f"{name} has {token!r}, which is no token of this model; allowed are ids from 0 to "
                f"{count - 1}. Take them from this model's own tokenizer"
            )
