"""What every trace is read into."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from bana.eval.requests import Prompt


class TraceRow(msgspec.Struct, frozen=True, gc=False):
    """One recorded request. Texts are empty where only lengths are known, lengths 0 otherwise.

    `time_s` is None where the trace has no times. `hash_ids` name the prompt's blocks; equal ids
    are equal tokens. `prompt` and `extra_body` are those of a request that was recorded whole.
    """

    time_s: float | None
    input_tokens: int = 0
    output_tokens: int = 0
    hash_ids: tuple[int, ...] = ()
    text: str = ""
    answer: str = ""
    session: str = ""
    prompt: Prompt | None = None
    extra_body: Mapping[str, object] = {}
