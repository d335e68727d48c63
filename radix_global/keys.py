"""Whose bytes a page holds, and the key under which every tier knows it.

    namespace: model, revision, weights, …  ── sha256 ─▶ digest ─┐
    tokens up to the page's end ── SGLang's chained sha256 ──────┴─ sha256 ─▶ first 16 bytes = key

A key stands for the whole prefix up to its page. Configurations that differ in any field of their
namespace cannot reach each other's pages.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import msgspec

from bana.slo.errors import ConfigError, SeamError, StoreError

KEY_BYTES = 16
DIGEST_BYTES = 32
# They change with the encoding below; a new field changes every digest by its name.
NAMESPACE_VERSION = b"bana-namespace-v1"
PAGE_VERSION = b"bana-page-v1"


class Namespace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything besides the tokens that changes a page's bytes.

    `weights_epoch` is empty for the weights as loaded and unique for each update after that. A
    counter will not do: two instances updated with different weights would count alike. `layout`
    names the order of the bytes in a page. The rank holds the layers `first_layer` to before
    `end_layer`. A tenant's salt and a LoRA's name need no field here: SGLang seeds its chained
    hash with them.
    """

    model: str
    revision: str
    weights_epoch: str
    dtype: str
    layout: str
    page_tokens: int
    tp_rank: int
    tp_size: int
    first_layer: int
    end_layer: int
    salt: str

    def __post_init__(self) -> None:
        if not self.model:
            raise ConfigError("namespace.model is empty; without a name, models would share pages")
        if self.page_tokens < 1:
            raise _unusable("page_tokens", self.page_tokens, ">= 1")
        if not 0 <= self.tp_rank < self.tp_size:
            raise _unusable("tp_rank", self.tp_rank, f"0 to before tp_size={self.tp_size}")
        if not 0 <= self.first_layer < self.end_layer:
            before = f"0 to before end_layer={self.end_layer}"
            raise _unusable("first_layer", self.first_layer, before)

    def digest(self) -> bytes:
        """32 bytes that no other namespace has: every part is preceded by its length."""
        parts = [NAMESPACE_VERSION]
        for name, value in msgspec.structs.asdict(self).items():
            # A model's path may hold bytes that are no text.
            parts += [name.encode(), str(value).encode(errors="surrogatepass")]
        framed = (len(part).to_bytes(8, "little") + part for part in parts)
        return hashlib.sha256(b"".join(framed)).digest()


def page_key(namespace_digest: bytes, page_hash: str) -> bytes:
    """The key of one page; `page_hash` is SGLang's, 64 hexadecimal digits."""
    return page_keys(namespace_digest, (page_hash,))


def page_keys(namespace_digest: bytes, page_hashes: Iterable[str]) -> bytes:
    """The keys of many pages, end to end. O(pages), about a microsecond each."""
    assert len(namespace_digest) == DIGEST_BYTES
    head = PAGE_VERSION + namespace_digest
    return b"".join(
        hashlib.sha256(head + _parse_hash(page_hash)).digest()[:KEY_BYTES]
        for page_hash in page_hashes
    )


def count_keys(keys: bytes) -> int:
    """How many keys are written end to end; StoreError where the last one is not whole."""
    if len(keys) % KEY_BYTES:
        raise StoreError(f"{len(keys)} bytes are no whole number of keys of {KEY_BYTES} bytes")
    return len(keys) // KEY_BYTES


def split_keys(keys: bytes) -> list[bytes]:
    """The keys one by one."""
    starts = range(0, count_keys(keys) * KEY_BYTES, KEY_BYTES)
    return [keys[start : start + KEY_BYTES] for start in starts]


def _parse_hash(page_hash: str) -> bytes:
    try:
        digest = bytes.fromhex(page_hash)
    except ValueError:
        digest = b""
    if len(digest) != DIGEST_BYTES:
        raise SeamError(
            f"page hash {page_hash[:80]!r} is no sha256 in hexadecimal; "
            "this SGLang hashes pages in another way than 0.5.23"
        )
    return digest


def _unusable(field: str, value: int, allowed: str) -> ConfigError:
    return ConfigError(f"namespace.{field}={value}, allowed: {allowed}; correct what fills it in")
