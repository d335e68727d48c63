"""What is waited for at servers that were attached: no process here tells how they are."""

from __future__ import annotations

import msgspec

from sglang_bana.cluster.progress import Row
from sglang_bana.status import FrontDoorStatus, InstanceState, InstanceStatus


class Standing(msgspec.Struct, frozen=True):
    """How a server stands, in words, and since when."""

    stage: str
    since_s: float


class AttachedServers:
    """The attached servers as the front door sees them. `log` is the front door's."""

    def __init__(self, log: str) -> None:
        self._log = log
        self._standings: dict[str, Standing] = {}

    def rows(self, status: FrontDoorStatus | None, now_s: float) -> tuple[Row, ...]:
        """One for each server that takes no work: what it is waited for, and for how long."""
        seen = () if status is None else status.instances
        awaited = {s.name: s for s in seen if s.state is not InstanceState.UP or s.trouble}
        self._standings = {n: self._note(s, now_s) for n, s in awaited.items()}
        return tuple(
            Row(name, now.stage, now_s - now.since_s, awaited[name].url, self._log)
            for name, now in self._standings.items()
        )

    def describe(self) -> str:
        """All of them in one line."""
        return "; ".join(f"{name}: {now.stage}" for name, now in self._standings.items())

    def _note(self, seen: InstanceStatus, now_s: float) -> Standing:
        stage = f"{seen.state}, {seen.trouble}" if seen.trouble else str(seen.state)
        known = self._standings.get(seen.name)
        return known if known is not None and known.stage == stage else Standing(stage, now_s)
