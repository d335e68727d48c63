"""What is said: conversations of turns, whose pieces are recorded or spans of runs.

    prompt of turn 2  =  asked 1 │ answer 1 │ asked 2

An answer in a prompt is a *planned* one: the schedule never waits for what a server says.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

import msgspec

from bana.eval.workload.token_runs import RecordedIds, Span

SYSTEM, USER, ASSISTANT = "system", "user", "assistant"


PieceContent = tuple[Span, ...] | RecordedIds | str


class Piece(msgspec.Struct, frozen=True, gc=False):
    """One message, or a part of a prompt without roles. Text is estimated in `tokens`."""

    role: str
    content: PieceContent
    tokens: int


class Turn(msgspec.Struct, frozen=True, gc=False):
    """What is asked anew, how long the answer shall be, and what later turns quote as answer.

    `extra_body` are fields of the request's own.
    """

    asked: tuple[Piece, ...]
    output_tokens: int
    answer: Piece | None = None
    extra_body: Mapping[str, object] = {}


class Conversation(msgspec.Struct, frozen=True, gc=False):
    """Turns that quote all earlier ones. Requests of the same `number` share their SLO class."""

    number: int
    turns: tuple[Turn, ...]
    session: str = ""
    family: str = ""

    def pieces(self, turn: int) -> tuple[Piece, ...]:
        """The whole prompt of the turn with that index."""
        return tuple(chain(self._quoted(turn), self.turns[turn].asked))

    def _quoted(self, turn: int) -> Iterator[Piece]:
        for earlier in self.turns[:turn]:
            yield from earlier.asked
            if earlier.answer is not None:
                yield earlier.answer


def estimate_tokens(text: str, chars_per_token: float) -> int:
    """About how many tokens a text has; exact only for the server's tokenizer."""
    return max(1, math.ceil(len(text) / chars_per_token))


def count_tokens(pieces: Iterable[Piece]) -> int:
    """How long a prompt is."""
    return sum(piece.tokens for piece in pieces)


def clip_pieces(
    pieces: tuple[Piece, ...], limit_tokens: int, chars_per_token: float
) -> tuple[Piece, ...]:
    """The beginning of a prompt, `limit_tokens` long."""
    kept: list[Piece] = []
    left = limit_tokens
    for piece in pieces:
        if piece.tokens >= left:
            kept.append(_clip_piece(piece, left, chars_per_token))
            break
        kept.append(piece)
        left -= piece.tokens
    return tuple(kept)


def _clip_piece(piece: Piece, limit_tokens: int, chars_per_token: float) -> Piece:
    if isinstance(piece.content, str):
        chars = max(1, math.floor(limit_tokens * chars_per_token))
        return Piece(piece.role, piece.content[:chars], limit_tokens)
    if isinstance(piece.content, RecordedIds):
        return Piece(piece.role, RecordedIds(piece.content.ids[:limit_tokens]), limit_tokens)
    spans: list[Span] = []
    left = limit_tokens
    for span in piece.content:
        count = min(span.count, left)
        spans.append(Span(span.run, span.start, count))
        left -= count
        if left == 0:
            break
    return Piece(piece.role, tuple(spans), limit_tokens)
