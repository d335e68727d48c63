"""Pieces of a conversation as a prompt in the form that the client sends."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import msgspec

from bana.eval.requests import Message, Prompt
from bana.eval.workload.conversations import Piece, PieceContent
from bana.eval.workload.spec import PromptForm
from bana.eval.workload.token_runs import (
    RecordedIds,
    Run,
    Span,
    TokenIds,
    TokenRange,
    derive_run,
    disguise_run,
)
from bana.eval.workload.words import WORDS, spell

PARAGRAPH = "\n\n"
MARK_WORDS = 8


class Renderer:
    """Makes prompts of one form; `base` is the key of what stands before warm-up prompts."""

    def __init__(self, form: PromptForm, allowed: TokenRange, base: int) -> None:
        self._form = form
        self._allowed = allowed
        self._values = allowed.count if form is PromptForm.TOKEN_IDS else len(WORDS)
        marking = (Span(derive_run(base, 0), 0, MARK_WORDS),)
        self._mark = spell(marking) + "."
        self._mark_ids = tuple(TokenIds(marking, allowed))

    def render(self, pieces: Sequence[Piece]) -> Prompt:
        """The prompt as it is sent."""
        match self._form:
            case PromptForm.TOKEN_IDS:
                return Prompt(token_ids=self._to_ids(pieces))
            case PromptForm.TEXT:
                return Prompt(text=PARAGRAPH.join(_to_text(piece) for piece in pieces))
            case PromptForm.CHAT:
                return Prompt(messages=tuple(Message(p.role, _to_text(p)) for p in pieces))

    def disguise(self, pieces: Sequence[Piece]) -> tuple[Piece, ...]:
        """A prompt of the same lengths and the same sharing that is unlike any of the window.

        Runs are replaced by others; what was recorded begins with a mark in place of its own words
        or ids.
        """
        kept = [self._disguise_spans(piece) for piece in pieces]
        kept[0] = msgspec.structs.replace(kept[0], content=self._put_mark(kept[0].content))
        return tuple(kept)

    def _to_ids(self, pieces: Sequence[Piece]) -> Sequence[int]:
        # What was recorded as ids is one piece, and recorded text has no token form.
        first = pieces[0].content
        if isinstance(first, RecordedIds):
            return first.ids
        spans = (p.content for p in pieces if isinstance(p.content, tuple))
        return TokenIds(tuple(itertools.chain.from_iterable(spans)), self._allowed)

    def _put_mark(self, content: PieceContent) -> PieceContent:
        if isinstance(content, str):
            return (self._mark + content[len(self._mark) :])[: len(content)]
        if isinstance(content, RecordedIds):
            ids = (*self._mark_ids, *content.ids[MARK_WORDS:])
            return RecordedIds(ids[: len(content.ids)])
        return content

    def _disguise_spans(self, piece: Piece) -> Piece:
        if not isinstance(piece.content, tuple):
            return piece
        spans = tuple(
            Span(self._disguise_run(span.run), span.start, span.count) for span in piece.content
        )
        return msgspec.structs.replace(piece, content=spans)

    def _disguise_run(self, run: Run) -> Run:
        return disguise_run(run, self._values)


def _to_text(piece: Piece) -> str:
    if isinstance(piece.content, str):
        return piece.content
    # `open_source` gives recorded ids no form as text.
    assert not isinstance(piece.content, RecordedIds)
    return spell(piece.content)
