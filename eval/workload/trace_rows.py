"""What every trace is read into."""

from __future__ import annotations

import msgspec


class TraceRow(msgspec.Struct, frozen=True, gc=False):
    """One recorded request. Texts are empty where only lengths are known, lengths 0 otherwise.

    `hash_ids` name the prompt's blocks; equal ids are equal tokens.
    """

    time_s: float
    input_tokens: int = 0
    output_tokens: int = 0
    hash_ids: tuple[int, ...] = ()
    text: str = ""
    answer: str = ""
    session: str = ""
