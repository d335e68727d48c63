"""Mooncake's traces: prompts as hash ids of their blocks, replayed with exact prefix sharing.

Each id stands for one run of tokens, by the seed and the id, whatever the order of requests. Where
an id stands for fewer tokens (the last block of a prompt), it is the beginning of the same run. The
first token of a run tells it from all that follow the same block, so two prompts share exactly what
their ids say. That holds while an id always follows the same one (as hashes of whole prefixes do)
and no block has more successors than there are token ids; else a chance token may be shared too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from bana.eval.workload.conversations import Conversation, Piece, Turn
from bana.eval.workload.scaling import scale_block, scale_length
from bana.eval.workload.token_runs import Run, Span, derive_run
from bana.eval.workload.trace_lines import Line, read_lines
from bana.eval.workload.trace_rows import TraceRow

MAX_BLOCKS = 1_000_000
_Length = Annotated[int, msgspec.Meta(ge=1, le=10_000_000)]
_HashId = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class _Record(msgspec.Struct, frozen=True):
    timestamp: Annotated[float, msgspec.Meta(ge=0, le=1e15)]
    input_length: _Length
    output_length: _Length
    hash_ids: Annotated[tuple[_HashId, ...], msgspec.Meta(max_length=MAX_BLOCKS)]


class BlockScale(msgspec.Struct, frozen=True):
    """How many tokens a block has in the trace, and by what lengths are multiplied."""

    block_tokens: int
    length_scale: float


def read_rows(path: Path, block_tokens: int) -> Iterator[TraceRow]:
    """Rows in order; ConfigError names the line that is malformed or out of order."""
    decoder = msgspec.json.Decoder(_Record)
    last_ms = 0.0
    for line in read_lines(path):
        record = _decode(decoder, line)
        if record.timestamp < last_ms:
            raise line.refuse("timestamp is earlier than in the line before; sort the trace")
        last_ms = record.timestamp
        blocks = -(-record.input_length // block_tokens)
        if len(record.hash_ids) != blocks:
            raise line.refuse(
                f"{len(record.hash_ids)} hash_ids, expected {blocks}: one for each block of "
                f"{block_tokens} in input_length {record.input_length}; set trace.block_tokens "
                "if blocks have another size"
            )
        yield TraceRow(
            record.timestamp / 1e3, record.input_length, record.output_length, record.hash_ids
        )


def compose_blocks(
    rows: Sequence[TraceRow], scale: BlockScale, base: int
) -> tuple[Conversation, ...]:
    """One request a row, its prompt composed of its blocks' runs. O(blocks)."""
    runs = _derive_runs(rows, base)
    block = scale_block(scale.block_tokens, scale.length_scale)
    whole = {hash_id: Span(run, 0, block) for hash_id, run in runs.items()}
    found = []
    for number, row in enumerate(rows):
        partial = row.input_tokens - scale.block_tokens * (len(row.hash_ids) - 1)
        last = Span(runs[row.hash_ids[-1]], 0, scale_length(partial, scale.length_scale))
        spans = (*(whole[hash_id] for hash_id in row.hash_ids[:-1]), last)
        asked = Piece("user", spans, sum(span.count for span in spans))
        turn = Turn((asked,), scale_length(row.output_tokens, scale.length_scale))
        found.append(Conversation(number, (turn,)))
    return tuple(found)


def _derive_runs(rows: Sequence[TraceRow], base: int) -> Mapping[int, Run]:
    """One run an id, whose first token tells it from the ids that follow the same block."""
    followers: dict[tuple[int, ...], set[int]] = {}
    for row in rows:
        before: tuple[int, ...] = ()
        for hash_id in row.hash_ids:
            followers.setdefault(before, set()).add(hash_id)
            before = (hash_id,)
    runs: dict[int, Run] = {}
    for before in sorted(followers):
        for rank, hash_id in enumerate(sorted(followers[before])):
            if hash_id not in runs:
                runs[hash_id] = Run(derive_run(base, hash_id).key, rank)
    return runs


def _decode(decoder: msgspec.json.Decoder[_Record], line: Line) -> _Record:
    try:
        return decoder.decode(line.text)
    except msgspec.DecodeError as error:
        expected = '{"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [ids]}'
        raise line.refuse(f"{error}; expected {expected}") from error
