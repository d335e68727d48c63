"""One-token probes at a low fixed rate, outside the load: how long a newcomer waits."""

from __future__ import annotations

import asyncio
import itertools
import time

import msgspec

from bana.eval.client.call import Call
from bana.eval.client.caller import Caller
from bana.eval.client.plan import ClientPlan
from bana.eval.client.prompts import PromptMaker
from bana.eval.client.shapes import Shaper
from bana.eval.requests import Offered, Probe

# So many seconds of probes may be out; on a server that answers none, the rest are not sent.
MAX_OUT_S = 60.0
# After the load is over a probe that is out gets its answer soon, or the server is stuck.
DRAIN_S = 5.0


class Prober:
    """Sends the probes of one run on connections of its own."""

    def __init__(self, plan: ClientPlan, prompts: PromptMaker, run_id: str) -> None:
        assert plan.probe_rps is not None
        self._interval_s = 1.0 / plan.probe_rps
        most = max(1, round(plan.probe_rps * MAX_OUT_S))
        own = msgspec.structs.replace(plan, max_outstanding=most, spare_connections=1)
        self._prompts = prompts
        self._run_id = run_id
        self._shaper = Shaper(own)
        self._caller = Caller(own, lambda call: None)
        self._calls: list[Call] = []

    async def probe(self, zero_s: float) -> None:
        """Send until cancelled, the first one half an interval after schedule zero."""
        for place in itertools.count():
            due_s = (place + 0.5) * self._interval_s
            await asyncio.sleep(max(0.0, zero_s + due_s - time.monotonic()))
            offered = Offered(place, due_s, self._prompts.make_small(), 0, 1)
            request_id = f"{self._run_id}-probe-{place}"
            call = Call(zero_s + due_s, offered, request_id, self._shaper.reader())
            self._calls.append(call)
            self._caller.start(call, self._shaper.write(offered, request_id))

    async def watch_timeouts(self) -> None:
        """End what passes a timeout, until cancelled."""
        await self._caller.watch_timeouts()

    async def drain(self) -> None:
        """Wait for those that are out, within bounds."""
        await self._caller.drain(DRAIN_S)

    async def close(self) -> None:
        """End all that is out."""
        await self._caller.close()

    def list_probes(self, zero_s: float) -> tuple[Probe, ...]:
        """All probes sent, in the order of their due times."""
        return tuple(_describe_probe(call, zero_s) for call in self._calls)


def _describe_probe(call: Call, zero_s: float) -> Probe:
    seen = call.observe(zero_s)
    return Probe(seen.due_s, seen.sent_s, seen.first_s, seen.ending, seen.error)
