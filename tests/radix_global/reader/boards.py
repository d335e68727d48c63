"""A board in tests: two tiers of one lane each, and what one of its lanes does next."""

from __future__ import annotations

from typing import Any

from bana.radix_global.reader.board import Board
from bana.radix_global.reader.entries import Reading
from bana.radix_global.reader.options import ReaderOptions
from bana.radix_global.reader.policies import Completion, CompletionOptions
from bana.radix_global.reader.wanting import PageRead
from bana.radix_global.stores.store import ReadOutcome

SPARES = (900, 901, 902, 903)
COMPLETION = Completion(CompletionOptions())


def make_board(widths: dict[int, int] | None = None, policy: Any = None, **options: Any) -> Board:
    options = {"lot_pages": 1, **options}
    policy = policy or COMPLETION
    return Board(widths or {1: 1, 2: 1}, SPARES, policy, ReaderOptions(**options))


def begin(board: Board, tier: int, now_s: float = 0.0) -> Reading:
    reading = board.next_read(board.lanes(tier)[0], now_s)
    assert reading is not None
    return reading


def finish(
    board: Board, tier: int, now_s: float = 0.0, outcome: ReadOutcome = ReadOutcome.READ
) -> None:
    board.finish(board.lanes(tier)[0], outcome, now_s)


def take_one(board: Board) -> PageRead:
    (outcome,) = board.take_outcomes()
    return outcome
