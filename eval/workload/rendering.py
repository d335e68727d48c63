"""Pieces of a conversation as a prompt in the form that the client sends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from bana.eval.requests import Message, Prompt
from bana.eval.workload.conversations import Piece
from bana.eval.workload.spec import PromptForm
from bana.eval.workload.token_runs import Run, Span, TokenIds, TokenRange, derive_run, disguise_run
from bana.eval.workload.words import WORDS, spell

PARAGRAPH = "\n\n"
MARK_WORDS = 8


class Renderer:
    """Makes prompts of one form; `base` is the key of what stands before warm-up prompts."""

    def __init__(self, form: PromptForm, allowed: TokenRange, base: int) -> None:
        self._form = form
        self._allowed = allowed
        self._values = allowed.count if form is PromptForm.TOKEN_IDS else len(WORDS)
        self._mark = spell((Span(derive_run(base, 0), 0, MARK_WORDS),)) + "."

    def render(self, pieces: Sequence[Piece]) -> Prompt:
        """The prompt as it is sent."""
        match self._form:
            case PromptForm.TOKEN_IDS:
                return Prompt(token_ids=TokenIds(tuple(_spans(pieces)), self._allowed))
            case PromptForm.TEXT:
                return Prompt(text=PARAGRAPH.join(_to_text(piece) for piece in pieces))
            case PromptForm.CHAT:
                return Prompt(messages=tuple(Message(p.role, _to_text(p)) for p in pieces))

    def disguise(self, pieces: Sequence[Piece]) -> tuple[Piece, ...]:
        """A prompt of the same lengths and the same sharing that is unlike any of the window.

        Runs are replaced by others; recorded text begins with a mark in place of its own words.
        """
        kept = [self._disguise_spans(piece) for piece in pieces]
        first = kept[0]
        if isinstance(first.content, str):
            mark = self._mark[: len(first.content)]
            text = mark + first.content[len(mark) :]
            kept[0] = msgspec.structs.replace(first, content=text)
        return tuple(kept)

    def _disguise_spans(self, piece: Piece) -> Piece:
        if isinstance(piece.content, str):
            return piece
        spans = tuple(
            Span(self._disguise_run(span.run), span.start, span.count) for span in piece.content
        )
        return msgspec.structs.replace(piece, content=spans)

    def _disguise_run(self, run: Run) -> Run:
        return disguise_run(run, self._values)


def _spans(pieces: Sequence[Piece]) -> Iterator[Span]:
    for piece in pieces:
        # `open_source` gives recorded text no token form.
        assert not isinstance(piece.content, str)
        yield from piece.content


def _to_text(piece: Piece) -> str:
    return piece.content if isinstance(piece.content, str) else spell(piece.content)
