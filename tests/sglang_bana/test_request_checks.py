"""Requests that would end a scheduler are refused in one line, and no others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sglang_bana.engine.request_checks import DeadlyRequestError, check_request

VOCABULARY = 100
PLACEHOLDER = 128_256


def manager(**changed: Any) -> SimpleNamespace:
    text = SimpleNamespace(vocab_size=changed.pop("embedded", VOCABULARY))
    config = SimpleNamespace(vocab_size=VOCABULARY, hf_text_config=text)
    return SimpleNamespace(**{"model_config": config, "mm_processor": None, **changed})


def request(media: str | None = None, **fields: Any) -> SimpleNamespace:
    defaults = {
        "input_ids": None,
        "input_embeds": None,
        "sampling_params": {},
        "session_params": None,
        "top_logprobs_num": 0,
        "positional_embed_overrides": None,
    }
    return SimpleNamespace(contains_mm_input=lambda: media is not None, **{**defaults, **fields})


def check(obj: SimpleNamespace, **changed: Any) -> None:
    check_request(manager(**changed), obj, obj.input_ids)


@pytest.mark.parametrize(
    "obj",
    [
        request(),
        request(input_ids=[0, VOCABULARY - 1]),
        request(input_ids=[], input_embeds=[[0.5]]),
        request(input_ids=[], session_params={"id": "s"}),
        request(sampling_params={"stop_token_ids": [0, VOCABULARY - 1], "top_k": -1}),
        request(sampling_params={"stop_token_ids": None, "top_k": 2**31 - 1}),
        request(top_logprobs_num=VOCABULARY),
        request(top_logprobs_num=None),
        request(sampling_params={"logit_bias": {"5": -1e30, "6": 1e30}}),
        request(sampling_params={"repetition_penalty": 0.01}),
        request(positional_embed_overrides=SimpleNamespace()),
    ],
)
def test_what_the_model_knows_passes(obj: SimpleNamespace) -> None:
    assert check(obj) is None


def test_a_request_for_an_embedding_has_neither_logprobs_nor_a_session() -> None:
    obj = request(input_ids=[1])
    del obj.top_logprobs_num, obj.session_params
    check(obj)
    with pytest.raises(DeadlyRequestError, match="the prompt has no token"):
        check_request(manager(), obj, [])


def test_of_ids_that_sglang_made_itself_there_must_be_some() -> None:
    check_request(manager(), request(), [10**9])
    with pytest.raises(DeadlyRequestError, match="the prompt has no token"):
        check_request(manager(), request(), [])


@pytest.mark.parametrize("token", [-1, VOCABULARY, 10**9, 2**70, 1.0, "5", None])
@pytest.mark.parametrize("name", ["input_ids", "stop_token_ids"])
def test_an_unknown_token_is_refused_with_its_name_and_range(name: str, token: Any) -> None:
    ids = [5, token, 7]
    obj = (
        request(input_ids=ids)
        if name == "input_ids"
        else request(sampling_params={"stop_token_ids": ids})
    )
    with pytest.raises(DeadlyRequestError) as caught:
        check(obj)
    assert str(caught.value) == (
        f"{name} has {token!r}, which is no token of this model; allowed are ids from 0 to 99. "
        "Take them from this model's own tokenizer"
    )
    # SGLang answers this kind with 400.
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("obj", "message"),
    [
        (request(sampling_params={"top_k": 2**31}), "top_k is 2147483648"),
        (request(top_logprobs_num=VOCABULARY + 1), "top_logprobs_num is 101, allowed are at most"),
        (request(sampling_params={"logit_bias": {"5": 1e300}}), "logit_bias of 5 is 1e\\+300"),
        (request(sampling_params={"logit_bias": {"5": -1e300}}), "logit_bias of 5 is -1e\\+300"),
        (request(sampling_params={"repetition_penalty": 1e-38}), "repetition_penalty is 1e-38"),
        (request(positional_embed_overrides={"embeds": []}), "positional_embed_overrides is for"),
        (request(input_ids=[]), "the prompt has no token, allowed is at least one"),
    ],
)
def test_what_overflows_the_tensors_of_a_batch_is_refused(
    obj: SimpleNamespace, message: str
) -> None:
    with pytest.raises(DeadlyRequestError, match=message):
        check(obj)


def test_a_prompt_may_have_tokens_that_the_model_cannot_put_out() -> None:
    check(request(input_ids=[VOCABULARY]), embedded=VOCABULARY + 1)
    with pytest.raises(DeadlyRequestError, match="stop_token_ids has 100"):
        check(request(sampling_params={"stop_token_ids": [VOCABULARY]}), embedded=VOCABULARY + 1)


def processor(**tokens: Any) -> SimpleNamespace:
    ids = {"image_token_id": None, "video_token_id": None, "audio_token_id": None, **tokens}
    return SimpleNamespace(mm_tokens=SimpleNamespace(**ids))


def test_placeholders_of_media_pass_wherever_they_lie() -> None:
    known = processor(image_token_id=PLACEHOLDER)
    check(request("image", input_ids=[5, PLACEHOLDER]), mm_processor=known)
    with pytest.raises(DeadlyRequestError, match="input_ids has 128257"):
        check(request("image", input_ids=[5, PLACEHOLDER + 1]), mm_processor=known)
    with pytest.raises(DeadlyRequestError, match="input_ids has 128256"):
        check(request(input_ids=[5, PLACEHOLDER]), mm_processor=known)


def test_placeholders_that_a_model_hides_cannot_be_judged() -> None:
    hidden = SimpleNamespace()
    check(request("image", input_ids=[5, -200]), mm_processor=hidden)
    with pytest.raises(DeadlyRequestError, match="input_ids has -200"):
        check(request(input_ids=[5, -200]), mm_processor=hidden)
