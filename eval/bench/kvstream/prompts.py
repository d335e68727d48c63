"""Which prompts a round asks: known documents with new questions, and documents nobody has seen.

n0 d0 d1 d2 d3 n1 d4 d5 d6 d7     a new one before each group, so that it is written among reads
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from bana.eval.bench.kvstream.settings import KvStreamSettings

Prompt = list[int]


def draw_documents(settings: KvStreamSettings, seed: int) -> list[Prompt]:
    """What lies on the tiers before anything is measured."""
    return [
        _draw(settings, settings.document_tokens, f"{seed} document {number}")
        for number in range(settings.documents)
    ]


def draw_warm_up(settings: KvStreamSettings, seed: int, who: str) -> list[Prompt]:
    """Prompts that are like no other's."""
    return [
        _draw(settings, settings.warm_tokens, f"{seed} warm-up {who} {number}")
        for number in range(settings.warm_requests)
    ]


def draw_round(
    settings: KvStreamSettings, documents: Sequence[Prompt], seed: int, where: str
) -> list[Prompt]:
    """The prompts of the round `where` names, in the order in which they are sent."""
    fresh = [
        _draw(settings, settings.document_tokens, f"{seed} {where} document {number}")
        for number in range(settings.new_documents)
    ]
    asked = merge_evenly(fresh, documents)
    return [
        [*document, *_draw(settings, settings.question_tokens, f"{seed} {where} question {number}")]
        for number, document in enumerate(asked)
    ]


def merge_evenly(few: Sequence[Prompt], many: Sequence[Prompt]) -> list[Prompt]:
    """One of `few` before each of as many groups of `many`."""
    if not few:
        return list(many)
    cuts = [len(many) * group // len(few) for group in range(len(few) + 1)]
    merged: list[Prompt] = []
    for group, document in enumerate(few):
        merged += [document, *many[cuts[group] : cuts[group + 1]]]
    return merged


def _draw(settings: KvStreamSettings, tokens: int, name: str) -> Prompt:
    rng = Random(name)
    return [rng.randint(settings.first_token_id, settings.last_token_id) for _ in range(tokens)]
