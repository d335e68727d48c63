"""Which part of a request an engine has, where two of them serve it.

front door ──▶ prefill: computes the prompt, publishes its pages; its answer is of no use
     └───────▶ decode: waits for those pages, then answers
"""

from __future__ import annotations

from enum import StrEnum

# Beside the promise, in a request's `custom_params`.
HANDOFF_PARAM = "bana_handoff"
# The same word for an engine, where a request's body has no place for it.
HANDOFF_HEADER = "x-bana-handoff"


class Handoff(StrEnum):
    """The part; NONE of a request that one engine serves alone."""

    NONE = ""
    PREFILL = "prefill"
    DECODE = "decode"


def read_handoff(params: object) -> Handoff:
    """What `custom_params` say; NONE for any word that is none of the front door's."""
    word = params.get(HANDOFF_PARAM) if isinstance(params, dict) else None
    return Handoff(word) if word in (Handoff.PREFILL, Handoff.DECODE) else Handoff.NONE
