"""Bodies are measured without a tokenizer and edited without touching what the client wrote."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_bana.router.body import (
    IMAGE_TOKENS,
    Shape,
    encode_fields,
    estimate_shape,
    estimate_tokens,
    list_rids,
    parse_fields,
    put_params,
    put_rid,
    put_salt,
    read_prompt,
)
from sglang_bana.router.endpoints import Endpoint, RidCarrier, SloCarrier, find_endpoint
from sglang_bana.router.errors import ApiError

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def _row(path: str) -> Endpoint:
    found = find_endpoint(path)
    assert found is not None
    return found


def _shape(path: str, body: dict[str, Any]) -> Shape:
    fields, row = parse_fields(json.dumps(body).encode()), _row(path)
    return estimate_shape(fields, row, read_prompt(fields, row))


@given(st.dictionaries(st.text(), JSON, max_size=6))
def test_an_unedited_body_keeps_its_values(body: dict[str, Any]) -> None:
    assert json.loads(encode_fields(parse_fields(json.dumps(body).encode()))) == body


def test_numbers_are_not_rewritten() -> None:
    text = b'{"seed":123456789012345678901234567890,"temperature":0.10000000000000000001}'
    assert encode_fields(parse_fields(text)) == text


@given(st.dictionaries(st.text(min_size=1), JSON, max_size=4))
def test_our_words_replace_only_theirs(own: dict[str, Any]) -> None:
    fields = parse_fields(json.dumps({"custom_params": own, "n": 1}).encode())
    put_params(fields, SloCarrier.TOP_LEVEL, {"bana_ttft_s": 1.5})
    kept = {key: value for key, value in own.items() if not key.startswith("bana_")}
    assert json.loads(encode_fields(fields)) == {
        "custom_params": {**kept, "bana_ttft_s": 1.5},
        "n": 1,
    }


@pytest.mark.parametrize(
    ("sampling", "wanted"),
    [
        (None, {"custom_params": {"bana_x": 1}}),
        ({"n": 2}, {"n": 2, "custom_params": {"bana_x": 1}}),
        (
            [{"n": 1}, {}],
            [{"n": 1, "custom_params": {"bana_x": 1}}, {"custom_params": {"bana_x": 1}}],
        ),
        ({"custom_params": None}, {"custom_params": {"bana_x": 1}}),
    ],
)
def test_every_sampling_params_gets_the_promise(sampling: Any, wanted: Any) -> None:
    fields = parse_fields(json.dumps({"sampling_params": sampling}).encode())
    put_params(fields, SloCarrier.SAMPLING_PARAMS, {"bana_x": 1})
    assert json.loads(encode_fields(fields))["sampling_params"] == wanted


@pytest.mark.parametrize("body", [{"custom_params": 3}, {"custom_params": [1]}])
def test_params_that_are_no_object_are_refused(body: dict[str, Any]) -> None:
    with pytest.raises(ApiError, match="has to be an object"):
        put_params(parse_fields(json.dumps(body).encode()), SloCarrier.TOP_LEVEL, {})


@pytest.mark.parametrize(
    ("path", "body", "items", "samples"),
    [
        ("/generate", {"text": "a"}, None, 1),
        ("/generate", {"text": ["a", "b"]}, 2, 1),
        ("/generate", {"text": ["a"], "sampling_params": {"n": 3}}, 1, 3),
        ("/generate", {"input_ids": [1, 2, 3]}, None, 1),
        ("/generate", {"text": None, "input_ids": [[1], [2], [3]]}, 3, 1),
        ("/v1/completions", {"prompt": [5, 6]}, None, 1),
        ("/v1/completions", {"prompt": ["a", "b"], "n": 2}, 2, 2),
        ("/v1/completions", {"prompt": []}, None, 1),
        ("/v1/chat/completions", {"messages": [{}, {}], "n": 2}, None, 2),
        ("/v1/embeddings", {"input": ["a", "b"]}, 2, 1),
        ("/v1/embeddings", {"input": "a"}, None, 1),
    ],
)
def test_batches_are_counted(
    path: str, body: dict[str, Any], items: int | None, samples: int
) -> None:
    shape = _shape(path, body)
    assert (shape.items, shape.samples) == (items, samples)


@pytest.mark.parametrize(
    ("path", "body", "tokens"),
    [
        ("/generate", {"sampling_params": {"max_new_tokens": 7}}, 7),
        ("/generate", {"sampling_params": [{"max_new_tokens": 8}]}, 8),
        ("/v1/completions", {"max_tokens": 9}, 9),
        ("/v1/chat/completions", {"max_completion_tokens": 10, "max_tokens": 1}, 10),
        ("/v1/responses", {"max_output_tokens": 11}, 11),
        ("/v1/chat/completions", {"max_tokens": "many"}, 128),
    ],
)
def test_the_wanted_output_is_read(path: str, body: dict[str, Any], tokens: int) -> None:
    assert _shape(path, body).output_tokens == tokens


def test_prompt_tokens_are_estimated() -> None:
    assert estimate_tokens(b"") == 0
    assert estimate_tokens(b"[11, 12, 13]") == 3
    assert estimate_tokens(b"[[11, 12], [13]]") == 3
    assert estimate_tokens(b'"' + b"x" * 400 + b'"') == 101
    image = b'[{"url":"data:image/png;base64,' + b"A" * 100_000 + b'"}]'
    assert IMAGE_TOKENS < estimate_tokens(image) < IMAGE_TOKENS + 20


@pytest.mark.parametrize(
    ("carrier", "items", "rids"),
    [
        (RidCarrier.EXPANDED, None, ("r",)),
        (RidCarrier.EXPANDED, 2, ("r", "r_0", "r_1")),
        (RidCarrier.PER_ITEM, 1, ("r", "r_0")),
        (RidCarrier.RESPONSE, None, ("r",)),
        (RidCarrier.HEADER, None, ("r",)),
        (RidCarrier.NONE, None, ()),
        (RidCarrier.SESSION, None, ()),
    ],
)
def test_the_ids_to_abort(carrier: RidCarrier, items: int | None, rids: tuple[str, ...]) -> None:
    assert list_rids(carrier, "r", Shape(items=items)) == rids


@pytest.mark.parametrize(
    ("carrier", "items", "field", "value"),
    [
        (RidCarrier.EXPANDED, 2, "rid", "r"),
        (RidCarrier.PER_ITEM, 2, "rid", ["r_0", "r_1"]),
        (RidCarrier.PER_ITEM, None, "rid", "r"),
        (RidCarrier.RESPONSE, None, "request_id", "r"),
        (RidCarrier.SESSION, None, "session_id", "r"),
    ],
)
def test_the_engine_gets_its_id(
    carrier: RidCarrier, items: int | None, field: str, value: object
) -> None:
    fields = parse_fields(b"{}")
    put_rid(fields, carrier, "r", Shape(items=items))
    assert json.loads(encode_fields(fields)) == {field: value}


def test_a_clients_session_id_is_kept() -> None:
    fields = parse_fields(b'{"session_id":"own"}')
    put_rid(fields, RidCarrier.SESSION, "r", Shape())
    assert json.loads(encode_fields(fields)) == {"session_id": "own"}


@pytest.mark.parametrize(
    ("own", "salted"), [(None, "s"), ("mine", "s:mine"), (["x", "y"], ["s:x", "s:y"])]
)
def test_salts_nest(own: object, salted: object) -> None:
    fields = parse_fields(json.dumps({} if own is None else {"cache_salt": own}).encode())
    put_salt(fields, "s")
    assert json.loads(encode_fields(fields)) == {"cache_salt": salted}
