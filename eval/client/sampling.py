"""Queue and balance, once in a while, where the server tells them; silence is no fault.

    /metrics    bana's front door (one instance a line), SGLang, vLLM
    /v1/loads   SGLang without metrics (one rank a record)

The first that tells is asked from then on.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping

import msgspec

from bana.eval.client.fetching import Fetcher
from bana.eval.client.plan import ClientPlan
from bana.eval.requests import ServerSample

ANSWER_TIMEOUT_S = 2.0
_LINE = re.compile(rb"([a-zA-Z_:][\w:]*)\{([^}]*)\}\s+(\S+)")
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_PREFIXES = (
    b"bana_engine_truth{",
    b"bana_router_belief{",
    b"sglang:num_",
    b"sglang_num_",
    b"vllm:num_requests_",
)
_RUNNING = frozenset(
    {"sglang:num_running_reqs", "sglang_num_running_reqs", "vllm:num_requests_running"}
)
_WAITING = frozenset(
    {"sglang:num_queue_reqs", "sglang_num_queue_reqs", "vllm:num_requests_waiting"}
)
# Which label tells servers apart, the first that is there.
_NAMES = ("instance", "dp_rank", "engine")


class Sample(msgspec.Struct, frozen=True):
    """Requests running and waiting, by instance."""

    running: dict[str, float]
    waiting: dict[str, float]


class _Load(msgspec.Struct):
    dp_rank: int
    num_running_reqs: int
    num_waiting_reqs: int


class _Loads(msgspec.Struct):
    loads: list[_Load]


class _Gauge(msgspec.Struct, frozen=True):
    """One line of an exposition."""

    name: str
    labels: Mapping[str, str]
    value: float

    @property
    def owner(self) -> str:
        return next((self.labels[name] for name in _NAMES if name in self.labels), "server")


def read_metrics(body: bytes) -> Sample | None:
    """What a Prometheus exposition tells of running and waiting requests; None when nothing."""
    sample, belief = Sample({}, {}), Sample({}, {})
    for gauge in _read_gauges(body):
        if gauge.name == "bana_engine_truth":
            _note(sample, gauge, ("running_requests", "waiting_requests"))
        elif gauge.name == "bana_router_belief":
            _note(belief, gauge, ("in_flight", "waiting_requests"))
        elif gauge.name in _RUNNING and not gauge.labels.get("priority"):
            sample.running[gauge.owner] = gauge.value
        elif gauge.name in _WAITING and not gauge.labels.get("priority"):
            sample.waiting[gauge.owner] = gauge.value
    if sample.running or sample.waiting:
        return sample
    return belief if belief.running else None


def read_loads(body: bytes) -> Sample | None:
    """What SGLang's `/v1/loads` tells, by rank; None when nothing."""
    try:
        loads = msgspec.json.decode(body, type=_Loads).loads
    except msgspec.MsgspecError:
        return None
    if not loads:
        return None
    running = {str(load.dp_rank): float(load.num_running_reqs) for load in loads}
    waiting = {str(load.dp_rank): float(load.num_waiting_reqs) for load in loads}
    return Sample(running, waiting)


Read = Callable[[bytes], Sample | None]
SOURCES: Mapping[str, Read] = {"/metrics": read_metrics, "/v1/loads": read_loads}


class Sampler:
    """Asks one server on a connection of its own."""

    def __init__(self, plan: ClientPlan) -> None:
        assert plan.sample_interval_s is not None
        self._interval_s = plan.sample_interval_s
        self._fetcher = Fetcher(plan.sampled or plan.target, plan.headers)
        self._sources = dict(SOURCES)
        self._samples: list[ServerSample] = []

    async def sample(self, zero_s: float) -> None:
        """Sample until cancelled, or until it is known that the server tells nothing."""
        due_s = zero_s
        while self._sources:
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            asked_s = time.monotonic()
            found = await self._ask()
            if found is not None:
                at_s = asked_s - zero_s
                self._samples.append(ServerSample(at_s, found.running, found.waiting))
            # A server that answers late is asked less often, not in a burst afterwards.
            due_s = max(due_s + self._interval_s, time.monotonic())

    def list_samples(self) -> tuple[ServerSample, ...]:
        """All samples so far."""
        return tuple(self._samples)

    async def close(self) -> None:
        """Drop the connection."""
        await self._fetcher.close()

    async def _ask(self) -> Sample | None:
        """The answer of the first source that tells; sources that answer but tell nothing go."""
        for path, read in list(self._sources.items()):
            reply = await self._fetcher.get(path, ANSWER_TIMEOUT_S)
            if reply is None:
                continue
            found = read(reply.body) if reply.status == 200 else None
            if found is not None:
                self._sources = {path: read}
                return found
            if not self._samples:
                del self._sources[path]
        return None


def _note(sample: Sample, gauge: _Gauge, names: tuple[str, str]) -> None:
    running, waiting = names
    quantity = gauge.labels.get("quantity")
    if quantity == running:
        sample.running[gauge.owner] = gauge.value
    elif quantity == waiting:
        sample.waiting[gauge.owner] = gauge.value


def _read_gauges(body: bytes) -> Iterator[_Gauge]:
    """The lines that may matter: an exposition has thousands of others."""
    for line in body.split(b"\n"):
        if not line.startswith(_PREFIXES):
            continue
        found = _LINE.match(line)
        if found is None:
            continue
        name, labels, value = (part.decode(errors="replace") for part in found.groups())
        number = _read_number(value)
        if number is not None:
            yield _Gauge(name, dict(_LABEL.findall(labels)), number)


def _read_number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
