"""Pages found on a tier, hung up in the index again below the pages that they follow.

    told in any order      c<b  a  x<b  b<a  f<e           < tells the page before
    inserted as chains     a b c │ b: x │ e: f             a chain ends at a leaf

An index call costs much before its first page, so that chains are as long as the pages allow: as
many as there are leaves. What lies on a tier is untrusted: forged cycles are cut somewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from bana.radix_global.index import PrefixIndex
from bana.radix_global.pages import MAX_PAGE_BYTES, Chain
from bana.radix_global.stores.store import HeldPage


class Recovered(msgspec.Struct, frozen=True):
    """How many pages the index knows on the tier now, and how many it had no room for."""

    taken: int
    refused: int


def recover_pages(index: PrefixIndex, tier: int, pages: Iterable[HeldPage]) -> Recovered:
    """Insert what `tier` was found to hold, parents first. O(pages).

    Pages may come in any portions, such as those of `Store.refresh`: a parent that is not among
    them is kept absent until it comes. They count as used in the order in which they are given,
    the last ones most recently, but for descendants, which follow their parents.
    """
    held = {page.key: page for page in pages}
    taken = 0
    for chain in chain_pages(held):
        taken += len(index.insert_on_tier(chain, tier).added)
    return Recovered(taken, len(held) - taken)


def chain_pages(held: Mapping[bytes, HeldPage]) -> Iterator[Chain]:
    """Chains that name every page once, each behind the one that holds its parent, if any does.

    Pages longer than an index takes are left out.
    """
    left = {key: page for key, page in held.items() if page.size_bytes <= MAX_PAGE_BYTES}
    below: dict[bytes, list[HeldPage]] = {}
    for page in left.values():
        below.setdefault(page.origin.parent, []).append(page)
    # The last one is next. What no first page leads to, on a cycle or below one, comes at the end.
    waiting = list(reversed(left.values()))
    waiting += [page for page in waiting if page.origin.parent not in left]
    while waiting:
        head = waiting.pop()
        if head.key not in left:
            continue
        after = b"" if head.origin.parent in left else head.origin.parent
        run = _take_run(head, left, below, waiting)
        yield Chain(
            keys=b"".join(page.key for page in run), page_bytes=head.size_bytes, after=after
        )


def _take_run(
    head: HeldPage,
    left: dict[bytes, HeldPage],
    below: Mapping[bytes, list[HeldPage]],
    waiting: list[HeldPage],
) -> list[HeldPage]:
    """The pages from `head` down to a leaf, no longer left; those beside them are put to wait."""
    run, following = [], [head]
    while following:
        page, *branches = following
        waiting.extend(reversed(branches))
        if page.key not in left:
            break
        if page.size_bytes != head.size_bytes:
            waiting.append(page)
            break
        run.append(left.pop(page.key))
        following = below.get(page.key, [])
    return run
