"""Conversations from a prompt file, in an order drawn by the seed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from bana.eval.workload.conversations import (
    ASSISTANT,
    SYSTEM,
    Conversation,
    Piece,
    Turn,
    estimate_tokens,
)
from bana.eval.workload.prompt_file import FileConversation, FileTurn
from bana.eval.workload.synthetic import Membership
from bana.eval.workload.token_runs import Run, Span


class FilePlan(msgspec.Struct, frozen=True):
    """What a file's conversations are joined with.

    `output` holds planned lengths by turn; where a turn has a recorded answer and
    `are_answers_kept`, that answer's length counts instead.
    """

    output: NDArray[np.int64]
    members: Sequence[Membership]
    runs: Sequence[Run]
    chars_per_token: float
    are_answers_kept: bool


def choose_lines(count: int, lines: int, rng: np.random.Generator) -> list[int]:
    """`count` line numbers: the whole file in a random order, then in another one, and so on."""
    chosen: list[int] = []
    while len(chosen) < count:
        chosen.extend(rng.permutation(lines).tolist())
    return chosen[:count]


def compose_file(
    conversations: Sequence[FileConversation], plan: FilePlan
) -> tuple[Conversation, ...]:
    """Each conversation with its family's prefix and planned answers. O(turns)."""
    found = []
    begin = 0
    for number, recorded in enumerate(conversations):
        output = plan.output[begin : begin + len(recorded.turns)].tolist()
        begin += len(recorded.turns)
        turns = tuple(_plan_turns(recorded, output, number, plan))
        found.append(Conversation(number, turns, family=plan.members[number].name))
    return tuple(found)


def _plan_turns(
    recorded: FileConversation, output: list[int], number: int, plan: FilePlan
) -> Iterator[Turn]:
    prefix = plan.members[number].prefix
    shared = [Piece(SYSTEM, (span,), span.count) for span in prefix]
    position = 0
    for turn, drawn in zip(recorded.turns, output, strict=True):
        asked = [_to_piece(m.role, m.content, plan) for m in turn.asked]
        answer = _plan_answer(turn, Span(plan.runs[number], position, drawn), plan)
        position += drawn
        tokens = answer.tokens if turn.answer and plan.are_answers_kept else drawn
        yield Turn((*shared, *asked), tokens, answer)
        shared = []


def _plan_answer(turn: FileTurn, span: Span, plan: FilePlan) -> Piece:
    if turn.answer:
        return _to_piece(ASSISTANT, turn.answer, plan)
    return Piece(ASSISTANT, (span,), span.count)


def _to_piece(role: str, text: str, plan: FilePlan) -> Piece:
    return Piece(role, text, estimate_tokens(text, plan.chars_per_token))
