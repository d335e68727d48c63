"""No two namespaces share a key, and a page's key depends on everything it should."""

from __future__ import annotations

import hashlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bana.radix_global.keys import (
    KEY_BYTES,
    Namespace,
    count_keys,
    page_key,
    page_keys,
    split_keys,
)
from bana.slo.errors import ConfigError, SeamError, StoreError

# Few letters, the digits among them, so that one field's end often looks like another's beginning.
WORDS = st.text("a1 \x00", max_size=3) | st.text(st.characters(codec=None), max_size=3)
HASHES = st.binary(min_size=32, max_size=32).map(bytes.hex)
PLAIN = Namespace(
    model="m",
    revision="r",
    weights_epoch="",
    dtype="bfloat16",
    layout="mha",
    page_tokens=16,
    tp_rank=0,
    tp_size=2,
    first_layer=0,
    end_layer=30,
    salt="",
)
CHANGED = {
    "model": "n",
    "revision": "s",
    "weights_epoch": "1",
    "dtype": "float16",
    "layout": "mla",
    "page_tokens": 32,
    "tp_rank": 1,
    "tp_size": 4,
    "first_layer": 1,
    "end_layer": 31,
    "salt": "s",
}


@st.composite
def namespaces(draw: st.DrawFn) -> Namespace:
    tp_size = draw(st.integers(1, 12))
    first_layer = draw(st.integers(0, 12))
    return Namespace(
        model=draw(WORDS.filter(bool)),
        revision=draw(WORDS),
        weights_epoch=draw(WORDS),
        dtype=draw(WORDS),
        layout=draw(WORDS),
        page_tokens=draw(st.integers(1, 112)),
        tp_rank=draw(st.integers(0, tp_size - 1)),
        tp_size=tp_size,
        first_layer=first_layer,
        end_layer=draw(st.integers(first_layer + 1, 20)),
        salt=draw(WORDS),
    )


def _page_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@given(namespaces(), namespaces(), HASHES)
def test_namespaces_share_a_key_only_if_they_are_equal(
    left: Namespace, right: Namespace, page_hash: str
) -> None:
    left_key = page_key(left.digest(), page_hash)
    assert (left_key == page_key(right.digest(), page_hash)) == (left == right)


@pytest.mark.parametrize("field", CHANGED)
def test_each_field_alone_changes_the_key(field: str) -> None:
    other = msgspec.structs.replace(PLAIN, **{field: CHANGED[field]})
    page_hash = _page_hash("page")
    assert page_key(other.digest(), page_hash) != page_key(PLAIN.digest(), page_hash)


def test_every_field_is_among_those_that_are_changed_alone() -> None:
    assert tuple(CHANGED) == Namespace.__struct_fields__


@given(WORDS.filter(bool), WORDS, st.integers(0, 5))
def test_text_cannot_move_from_one_field_to_the_next(left: str, right: str, cut: int) -> None:
    joined = left + right
    moved = msgspec.structs.replace(PLAIN, model=joined[: cut + 1], revision=joined[cut + 1 :])
    as_given = msgspec.structs.replace(PLAIN, model=left, revision=right)
    assert (moved.digest() == as_given.digest()) == (moved == as_given)


def test_keys_stay_what_they_were() -> None:
    # What is on disk was written under these keys: another encoding needs another version.
    digest = PLAIN.digest()
    assert digest.hex() == "3c2a78a24550540595464b77cc4100202a7a14448a7c85b49e42495e0074bd5b"
    assert page_key(digest, _page_hash("page")).hex() == "0cf0508edb7cf61f35319d136ea353fe"


@given(st.lists(HASHES, max_size=5))
def test_many_keys_are_each_one_end_to_end(hashes: list[str]) -> None:
    digest = PLAIN.digest()
    keys = page_keys(digest, hashes)
    assert split_keys(keys) == [page_key(digest, page_hash) for page_hash in hashes]
    assert count_keys(keys) == len(hashes)
    assert len(keys) == KEY_BYTES * len(hashes)


@pytest.mark.parametrize(
    "page_hash", ["", "ab", "zz" * 32, "ab" * 31, "ab" * 33, "-5", "ab" * 32 + "a"]
)
def test_what_is_no_sha256_is_refused(page_hash: str) -> None:
    with pytest.raises(SeamError, match="no sha256"):
        page_key(PLAIN.digest(), page_hash)


@pytest.mark.parametrize("size", [1, 15, 17, 40])
def test_half_a_key_is_refused(size: int) -> None:
    with pytest.raises(StoreError, match="whole number of keys"):
        split_keys(bytes(size))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", ""),
        ("page_tokens", 0),
        ("tp_rank", -1),
        ("tp_rank", 2),
        ("tp_size", 0),
        ("first_layer", -1),
        ("first_layer", 30),
        ("end_layer", 0),
    ],
)
def test_a_namespace_that_cannot_be_is_refused(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match="namespace"):
        msgspec.structs.replace(PLAIN, **{field: value})
