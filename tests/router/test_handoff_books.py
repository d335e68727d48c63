"""However the sides of hand-offs end, and in whatever order, places and loads are given back."""

from __future__ import annotations

import asyncio
import dataclasses
from types import SimpleNamespace
from typing import Any

import aiohttp
from hypothesis import given, settings
from hypothesis import strategies as st

from bana.slo.load import LoadLedger
from bana.slo.roles import Role
from sglang_bana.config import HandoffConfig, LimitsConfig, RoutingConfig, UpstreamSpec
from sglang_bana.router.body import estimate_shape, parse_fields, read_prompt
from sglang_bana.router.call import Call
from sglang_bana.router.dispatch import Dispatcher
from sglang_bana.router.endpoints import find_endpoint
from sglang_bana.router.flights import Flight
from sglang_bana.router.handoff import Handoffs, Prefill
from sglang_bana.router.instances import InstanceBoard
from sglang_bana.router.keys import Grant
from sglang_bana.router.means import Means
from sglang_bana.router.metrics import RouterMetrics
from sglang_bana.router.places import Places
from sglang_bana.router.roles import Roles

from .handoff_views import report_link

NAMES = ("d", "p", "q")
PLACES = 2
BODY = b'{"text": "a prompt that is long enough for this"}'


class FakeUpstream:
    """Answers when it is told to, with whatever it is told."""

    def __init__(self) -> None:
        self.sent: list[asyncio.Future[Any]] = []

    async def send(self, instance: Any, message: Any) -> Any:
        self.sent.append(asyncio.get_running_loop().create_future())
        return await self.sent[-1]


class FakeAborts:
    """Notes what is aborted."""

    def __init__(self) -> None:
        self.rids: list[str] = []

    def send(self, instance: Any, rids: Any, age_s: float) -> None:
        self.rids.extend(rids)


def _answer(status: int) -> Any:
    async def readany() -> bytes:
        return b""

    content = SimpleNamespace(readany=readany)
    return SimpleNamespace(status=status, content=content, close=lambda: None, release=lambda: None)


@dataclasses.dataclass
class Pair:
    """One request that was handed off."""

    flight: Flight
    prefill: Prefill
    sent: int


class Desk:
    """Hand-offs on one decode and two prefill instances, with fakes around them."""

    def __init__(self, file: Any) -> None:
        kinds = {"d": Role.DECODE, "p": Role.PREFILL, "q": Role.PREFILL}
        specs = [UpstreamSpec(n, f"http://{n}", f"ipc://{n}", role=kinds[n]) for n in NAMES]
        self.board = InstanceBoard(specs, 5.0)
        for instance in self.board.all():
            self.board.observe_ready(instance, 1e9)
        self.ledger, metrics = LoadLedger(), RouterMetrics()
        for name in NAMES:
            self.ledger.add_report(report_link(name))
        self.roles = Roles(self.board, file)
        dispatcher = Dispatcher(RoutingConfig(), self.board, self.ledger, metrics, lambda: None)
        limits = LimitsConfig(max_unanswered_per_instance=PLACES)
        self.places = Places(self.board, self.roles, dispatcher, limits)
        self.upstream, self.aborts = FakeUpstream(), FakeAborts()
        carriers: Any = (self.places, self.ledger, self.upstream, self.aborts, metrics)
        store: Any = SimpleNamespace(report=lambda: object())
        config = HandoffConfig(min_prompt_tokens=1)
        self.handoffs = Handoffs(config, Means(*carriers), self.roles, dispatcher, store)
        self.pairs: list[Pair] = []
        endpoint = find_endpoint("/generate")
        assert endpoint is not None
        fields = parse_fields(BODY)
        prompt = read_prompt(fields, endpoint)
        shape = estimate_shape(fields, endpoint, prompt)
        self.call = Call(endpoint, "POST", "/generate", {}, None, fields, shape, prompt)

    async def start(self) -> None:
        """One more request, as the relay sends it."""
        decoder = self.board.find("d")
        assert decoder is not None
        number = len(self.pairs)
        flight = Flight(f"r{number}", self.call.endpoint, Grant(), 1.0, 1.0, attempts=1)
        sent = len(self.upstream.sent)
        prefill = self.handoffs.start(flight, self.call, decoder)
        if prefill is None:
            return
        flight.rid, flight.instance = f"rid{number}", "d"
        self.ledger.add_dispatch(flight.rid, "d", 0, 1.0)
        await prefill.depart()
        self.pairs.append(Pair(flight, prefill, sent))

    def finish_copy(self, pair: Pair, how: int) -> None:
        """The prefill instance answers, refuses, or is lost."""
        future = self.upstream.sent[pair.sent]
        if future.done():
            return
        if how:
            future.set_result(_answer(how))
        else:
            future.set_exception(aiohttp.ServerDisconnectedError())

    def answer(self, pair: Pair) -> None:
        """The other begins to answer."""
        pair.flight.answered_s = 2.0
        self.ledger.mark_answered(pair.flight.rid)

    def finish(self, pair: Pair) -> None:
        """The other has answered, or its client is gone."""
        self.ledger.remove_dispatch(pair.flight.rid)
        pair.prefill.end()

    def check(self) -> None:
        """What is believed of the prefill instances is what is under way there."""
        loads = self.ledger.loads(NAMES)
        for name in ("p", "q"):
            taken = loads[name].waiting_requests
            assert 0 <= taken <= PLACES
            instance = self.board.find(name)
            assert instance is not None
            assert self.places.has_room(instance) is (taken < PLACES)


_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["start", "copy", "answer", "finish", "turn", "roles"]),
        st.integers(0, 7),
        st.sampled_from([200, 429, 503, 400, 0]),
    ),
    max_size=40,
)


@settings(deadline=None)
@given(steps=_STEPS)
def test_every_order_of_ends_leaves_nothing(tmp_path_factory: Any, steps: list[Any]) -> None:
    async def run() -> None:
        desk = Desk(tmp_path_factory.mktemp("r") / "roles.json")
        for word, which, how in steps:
            pair = desk.pairs[which % len(desk.pairs)] if desk.pairs else None
            if word == "start":
                await desk.start()
            elif word == "turn":
                await asyncio.sleep(0)
            elif word == "roles":
                desk.roles.change({NAMES[which % 3]: list(Role)[how % 3]})
            elif pair is not None:
                if word == "copy":
                    desk.finish_copy(pair, how)
                else:
                    (desk.answer if word == "answer" else desk.finish)(pair)
            for _ in range(4):
                await asyncio.sleep(0)
            desk.check()
        for pair in desk.pairs:
            desk.finish(pair)
        for _ in range(5):
            await asyncio.sleep(0)
        beliefs = set(desk.ledger.loads(NAMES).values())
        assert {(b.prefill_tokens, b.decode_requests, b.waiting_requests) for b in beliefs} == {
            (0, 0, 0)
        }
        assert all(desk.places.has_room(i) for i in desk.board.all())
        status = desk.handoffs.status()
        assert status.sent == len(desk.pairs) == sum(status.outcomes.values())
        # Aborted is what did not come to an end, and nothing else.
        lost = status.outcomes.get("failed", 0) + status.outcomes.get("dropped", 0)
        assert len(set(desk.aborts.rids)) == lost

    asyncio.run(run())


def test_the_prompt_of_an_answer_that_began_is_nobodys_work(tmp_path: Any) -> None:
    async def run() -> None:
        desk = Desk(tmp_path / "roles.json")
        await desk.start()
        await desk.start()
        late, early = desk.pairs
        desk.answer(early)
        for pair in desk.pairs:
            desk.finish_copy(pair, 503)
        for _ in range(4):
            await asyncio.sleep(0)
        load = desk.ledger.loads(["d"])["d"]
        assert load.prefill_tokens == desk.call.shape.prompt_tokens
        assert (load.waiting_requests, load.decode_requests) == (1, 1)
        for pair in (late, early):
            desk.finish(pair)

    asyncio.run(run())
