"""SGLang's hashes of a prompt's whole pages, in a process of its own: JSON from standard input.

`python -m sglang_bana.engine.page_hashes < ASKED`; the last line printed is a list of hashes.
"""

from __future__ import annotations

import sys
from array import array

import msgspec
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.utils import get_storage_hash_str


class Asked(msgspec.Struct, frozen=True):
    """A prompt's token ids, the tokens of a page, and the tenant's salt (empty: none)."""

    token_ids: list[int]
    page_tokens: int
    cache_salt: str = ""


def hash_pages(asked: Asked) -> list[str]:
    """One hash a whole page, each of the prompt up to its page's end."""
    key = RadixKey(token_ids=array("q", asked.token_ids), cache_salt=asked.cache_salt or None)
    aligned = key.page_aligned(asked.page_tokens)
    if not len(aligned):
        return []
    return list(get_storage_hash_str(aligned, None, page_size=asked.page_tokens))


if __name__ == "__main__":
    hashes = hash_pages(msgspec.json.decode(sys.stdin.buffer.read(), type=Asked))
    print(msgspec.json.encode(hashes).decode())
