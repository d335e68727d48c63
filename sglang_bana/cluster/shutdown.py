"""The order in which a cluster ends, so that nothing is cut that could still finish.

front door SIGTERM ──drained──▶ listener closed ──▶ instances SIGTERM ──▶ SIGKILL ──▶ leftovers
      └─ drain_timeout_s + stop_timeout_s              └─ stop_timeout_s   then the store alike
a second signal: straight to SIGKILL of every group
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Sequence

import msgspec

from sglang_bana.cluster.keeper import Keeper


class StopRules(msgspec.Struct, frozen=True):
    """How long running requests, and then processes, are waited for."""

    drain_timeout_s: float
    stop_timeout_s: float


async def stop_everything(
    front_door: Keeper,
    listener: socket.socket,
    behind: Sequence[Sequence[Keeper]],
    rules: StopRules,
    hurry: asyncio.Event,
) -> None:
    """Drain and end all processes; those that do not end in time, or on `hurry`, are killed.

    The groups of `behind` end one after the other.
    """
    await _end((front_door,), rules.drain_timeout_s + rules.stop_timeout_s, hurry)
    await front_door.clean_up()
    # Nobody takes connections any more: clients are refused instead of left waiting.
    listener.close()
    for keepers in behind:
        await _end(keepers, rules.stop_timeout_s, hurry)
        await asyncio.gather(*(keeper.clean_up() for keeper in keepers))


async def cancel_all(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Cancel `tasks` and wait for them; their results no longer matter."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _end(keepers: Sequence[Keeper], timeout_s: float, hurry: asyncio.Event) -> None:
    if hurry.is_set() or not keepers:
        return
    for keeper in keepers:
        keeper.terminate()
    ended = asyncio.gather(*(keeper.wait_end() for keeper in keepers))
    await _wait_any((ended, hurry.wait()), timeout_s)


async def _wait_any(awaitables: Sequence[Awaitable[object]], timeout_s: float) -> None:
    waiting = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
    await asyncio.wait(waiting, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    for future in waiting:
        future.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await future
