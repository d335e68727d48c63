"""Which prompts were sent where, approximately: a bounded index of chained block hashes.

    prompt bytes │ block 0 │ block 1 │ block 2 │ rest (not indexed)
    keys           h0        h(h0,1)   h(h1,2)

A key stands for its whole prefix. The index holds at most `max_pages` keys and drops the least
recently used; it forgets what an engine evicts only that way, as any approximation does.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping

import xxhash

from sglang_bana.router.body import BYTES_PER_TOKEN

BLOCK_BYTES = 256
BLOCK_TOKENS = BLOCK_BYTES // BYTES_PER_TOKEN
MAX_BLOCKS = 4096


def hash_prefixes(prompt: bytes) -> list[int]:
    """One key a whole block, each depending on all before it; O(bytes), bounded."""
    keys: list[int] = []
    seed = 0
    end = min(len(prompt) // BLOCK_BYTES, MAX_BLOCKS) * BLOCK_BYTES
    for start in range(0, end, BLOCK_BYTES):
        seed = xxhash.xxh3_64_intdigest(prompt[start : start + BLOCK_BYTES], seed)
        keys.append(seed)
    return keys


class PrefixIndex:
    """Prefix keys with the set of instances they were sent to, as a bit mask."""

    def __init__(self, instances: Iterable[str], max_pages: int) -> None:
        self._bits = {name: 1 << place for place, name in enumerate(sorted(instances))}
        self._max_pages = max_pages
        self._owners: OrderedDict[int, int] = OrderedDict()
        self._counts = dict.fromkeys(self._bits, 0)

    def __len__(self) -> int:
        return len(self._owners)

    def match(self, keys: list[int]) -> Mapping[str, int]:
        """How many blocks of the prompt each instance has seen as a prefix."""
        found: dict[str, int] = {}
        for name, bit in self._bits.items():
            depth = 0
            while depth < len(keys) and self._owners.get(keys[depth], 0) & bit:
                depth += 1
            found[name] = depth
        return found

    def insert(self, keys: list[int], instance: str) -> None:
        """The prompt was sent to `instance`."""
        bit = self._bits[instance]
        for key in keys:
            owners = self._owners.get(key, 0)
            if not owners & bit:
                self._counts[instance] += 1
            self._owners[key] = owners | bit
        # Shorter prefixes are touched last, so that a chain is dropped from its end.
        for key in reversed(keys):
            self._owners.move_to_end(key)
        while len(self._owners) > self._max_pages:
            _, owners = self._owners.popitem(last=False)
            self._discount(owners)

    def indexed_tokens(self, instance: str) -> int:
        """How much of all prompts was sent to `instance`, about so many tokens."""
        return self._counts[instance] * BLOCK_TOKENS

    def forget_instance(self, instance: str) -> None:
        """Its cache is gone. O(index)."""
        bit = self._bits[instance]
        for key in [k for k, owners in self._owners.items() if owners & bit]:
            left = self._owners[key] & ~bit
            if left:
                self._owners[key] = left
            else:
                del self._owners[key]
        self._counts[instance] = 0

    def _discount(self, owners: int) -> None:
        for name, bit in self._bits.items():
            if owners & bit:
                self._counts[name] -= 1
