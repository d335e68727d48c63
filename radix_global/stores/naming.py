"""What a segment's file is called: `seg-<sequence>-<tail>.pages`, so that names sort by age.

A new segment's sequence is one more than the highest seen (a Lamport clock: no host's time is
asked), and its tail is random: two writers that saw the same folder still have names of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from random import Random

LAST_SEQUENCE = 2**48 - 1
_TAIL_BITS = 96
_NAME = re.compile(r"seg-([0-9a-f]{12})-[0-9a-f]{24}\.pages", re.ASCII)


def is_segment_name(name: str) -> bool:
    """Whether a file of this name may be a segment."""
    return _NAME.fullmatch(name) is not None


def name_next(names: Iterable[str], rng: Random) -> str:
    """A name that sorts behind `names`, all of segments.

    At LAST_SEQUENCE, which only a forged name brings about, order is left to chance.
    """
    latest = max((int(name[4:16], 16) for name in names), default=0)
    sequence = min(latest + 1, LAST_SEQUENCE)
    return f"seg-{sequence:012x}-{rng.getrandbits(_TAIL_BITS):024x}.pages"
