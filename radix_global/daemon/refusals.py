"""Clients that may not attach, and why: said once, and kept for whoever asks how the store is."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from bana.radix_global.messages import Attach

MAX_REFUSALS = 64
# A client that is refused asks again every few seconds for as long as it lives.
REMEMBERED_S = 60.0


@dataclasses.dataclass(frozen=True)
class Refusal:
    """The last answer to one client, at `told_s`."""

    name: str
    pid: int
    reason: str
    told_s: float


class Refusals:
    """The newest refusals, by client; `say` takes log lines."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._refusals: dict[bytes, Refusal] = {}

    def note(self, asked: Attach, reason: str, now_s: float) -> None:
        """It was refused; said unless it was told the same before."""
        before = self._refusals.pop(asked.client, None)
        if len(self._refusals) >= MAX_REFUSALS:
            del self._refusals[next(iter(self._refusals))]
        self._refusals[asked.client] = Refusal(asked.name, asked.pid, reason, now_s)
        if before is None or before.reason != reason:
            self._say(f"{asked.name!r} (pid {asked.pid}) is refused: {reason}")

    def forget(self, client: bytes) -> None:
        """It is attached now."""
        self._refusals.pop(client, None)

    def list(self, now_s: float) -> tuple[Refusal, ...]:
        """Those that have asked lately, the newest last."""
        lately_s = now_s - REMEMBERED_S
        return tuple(each for each in self._refusals.values() if each.told_s >= lately_s)
