"""What an instance is there for: a weight in routing, not a way to be launched.

role       computes prompts   decodes
prefill    yes                where nobody else is up
decode     likewise           yes
both       yes                yes
"""

from __future__ import annotations

from enum import StrEnum


class Role(StrEnum):
    """What requests an instance is chosen for; it changes at once, and what runs stays."""

    PREFILL = "prefill"
    DECODE = "decode"
    BOTH = "both"


class Work(StrEnum):
    """What a request asks of its instance: to compute a prompt only, to decode, or neither."""

    PROMPT = "prompt"
    ANSWER = "answer"
    ANY = "any"


def suits(role: Role, work: Work) -> bool:
    """Whether an instance of this role is chosen for such work while others could be."""
    if work is Work.PROMPT:
        return role is not Role.DECODE
    if work is Work.ANSWER:
        return role is not Role.PREFILL
    return True
