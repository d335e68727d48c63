"""Conversations made up from lengths: an own run each, a family's shared run before it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from bana.eval.workload.conversations import ASSISTANT, SYSTEM, USER, Conversation, Piece, Turn
from bana.eval.workload.seeds import Purpose, Seeds
from bana.eval.workload.spec import FamilySpec
from bana.eval.workload.token_runs import Run, Span, derive_run


class TurnLengths(msgspec.Struct, frozen=True):
    """Lengths in tokens. `turns` and `first` by conversation; `later` and `output` by turn.

    Turns lie conversation after conversation. `first` is the whole first prompt, its shared
    prefix included; `later` what each further turn adds (of a first turn it is not looked at).
    """

    turns: NDArray[np.int64]
    first: NDArray[np.int64]
    later: NDArray[np.int64]
    output: NDArray[np.int64]


class Membership(msgspec.Struct, frozen=True):
    """The shared prefix of one conversation; of no family, it is empty."""

    name: str = ""
    prefix: tuple[Span, ...] = ()


def compose_synthetic(
    lengths: TurnLengths, members: Sequence[Membership], runs: Sequence[Run]
) -> tuple[Conversation, ...]:
    """One conversation for each length of a first prompt. O(turns)."""
    found = []
    begin = 0
    for number, turns in enumerate(lengths.turns.tolist()):
        end = begin + turns
        added = [int(lengths.first[number]), *lengths.later[begin + 1 : end].tolist()]
        plan = _Plan(added, lengths.output[begin:end].tolist(), members[number], runs[number])
        found.append(Conversation(number, tuple(plan.turns()), family=members[number].name))
        begin = end
    return tuple(found)


def choose_members(families: FamilySpec | None, count: int, seeds: Seeds) -> list[Membership]:
    """Which family each conversation belongs to."""
    if families is None:
        return [Membership()] * count
    weights = 1.0 / np.arange(1, families.count + 1) ** families.zipf
    edges = np.cumsum(weights) / weights.sum()
    base = seeds.key(Purpose.CONTENT)
    known = [
        Membership(f"f{k}", (Span(derive_run(base, k), 0, families.shared_tokens),))
        for k in range(families.count)
    ]
    is_member = seeds.generator(Purpose.FAMILY_MEMBERS).random(count) < families.share
    draws = seeds.generator(Purpose.FAMILY_CHOICE).random(count)
    chosen = np.minimum(np.searchsorted(edges, draws, side="right"), families.count - 1)
    pairs = zip(chosen.tolist(), is_member.tolist(), strict=True)
    return [known[k] if member else Membership() for k, member in pairs]


def derive_own_runs(families: FamilySpec | None, count: int, seeds: Seeds) -> list[Run]:
    """The runs that conversations share with nobody, numbered on after the families'."""
    base = seeds.key(Purpose.CONTENT)
    taken = families.count if families is not None else 0
    return [derive_run(base, taken + number) for number in range(count)]


class _Plan:
    """One conversation: its own run is read on from turn to turn, questions and answers alike."""

    def __init__(self, added: list[int], output: list[int], member: Membership, own: Run) -> None:
        self._added = added
        self._output = output
        self._member = member
        self._own = own
        self._position = 0

    def turns(self) -> Iterator[Turn]:
        prefix = tuple(self._prefix())
        for index, (added, output) in enumerate(zip(self._added, self._output, strict=True)):
            shared = prefix if index == 0 else ()
            asked = self._read_on(USER, added - sum(piece.tokens for piece in shared))
            yield Turn((*shared, asked), output, self._read_on(ASSISTANT, output))

    def _prefix(self) -> Iterator[Piece]:
        # A prompt keeps at least one token of its own.
        for span in self._member.prefix:
            count = min(span.count, self._added[0] - 1)
            if count > 0:
                yield Piece(SYSTEM, (Span(span.run, 0, count),), count)

    def _read_on(self, role: str, tokens: int) -> Piece:
        span = Span(self._own, self._position, tokens)
        self._position += tokens
        return Piece(role, (span,), tokens)
