"""What an engine's side of the store holds at most, and how long it waits."""

from __future__ import annotations

import msgspec


class LinkerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """A load that takes longer than `load_s` fails, and its requests are computed. Resetting
    waits `quiesce_s` for copies that are under way.

    At most `max_wants` requests have pages asked for, each for as long as it waits but no longer
    than `fetch_s`; one whose prompt another instance computes waits for that to be announced, which
    may take a step there: `await_share` times what computing it here takes, but `await_least_s` at
    least and `await_s` at most; not at all where the device has its beginning and lacks fewer than
    `await_tokens`. Pages that are being saved stay locked in the tree: one piece of it, or at most
    `locked_share` of the pool. `known_pages` are remembered as being in the store, `lot_pages`
    saved at a time.
    """

    load_s: float = 10.0
    quiesce_s: float = 10.0
    fetch_s: float = 60.0
    await_tokens: int = 0
    await_share: float = 2.0
    await_least_s: float = 1.0
    await_s: float = 10.0
    max_wants: int = 4096
    locked_share: float = 0.25
    known_pages: int = 262_144
    lot_pages: int = 32
