"""Sessions and stored responses go to the instance that holds them, even after a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from bana.eval.stub import StubSettings
from sglang_bana.config import UpstreamSpec
from sglang_bana.router.ids import mint_rid, read_tag, tag_of
from sglang_bana.router.instances import InstanceBoard
from sglang_bana.router.sticky import StickyTable

Door = Callable[..., AbstractAsyncContextManager[Any]]


def _board() -> InstanceBoard:
    return InstanceBoard([UpstreamSpec(n, f"http://{n}") for n in ("a", "b")], 5.0)


def test_minted_ids_name_their_instance_without_memory() -> None:
    rid = mint_rid(tag_of("b"))
    assert (len(rid), rid[12], read_tag(rid)) == (32, "8", tag_of("b"))
    table = StickyTable(_board(), 10)
    for identifier in (rid, f"resp_{rid}"):
        found = table.find(identifier)
        assert found is not None
        assert found.name == "b"
    assert table.find("resp_unknown") is None


def test_the_table_forgets_the_least_recently_used() -> None:
    table = StickyTable(_board(), 2)
    table.remember("one", "a")
    table.remember("two", "b")
    assert table.find("one") is not None
    table.remember("three", "a")
    assert len(table) == 2
    assert table.find("two") is None
    assert table.find("one") is not None


def test_a_session_stays_on_its_instance(door: Door) -> None:
    async def run() -> None:
        async with door(routing={"policy": "round_robin"}) as front:
            for own in (None, "chosen-by-the-client"):
                opening: dict[str, Any] = {"capacity_of_str_len": 100}
                if own is not None:
                    opening["session_id"] = own
                opened = await front.post("/open_session", opening)
                session = opened.json()
                assert own is None or session == own
                holder = opened.headers["x-bana-instance"]
                body = {"text": "hi", "session_params": {"id": session}}
                for _ in range(5):
                    reply = await front.post("/generate", body)
                    assert reply.headers["x-bana-instance"] == holder
                closed = await front.post("/close_session", {"session_id": session})
                assert closed.headers["x-bana-instance"] == holder
            unknown = await front.post(
                "/generate", {"text": "hi", "session_params": {"id": "nobody's"}}
            )
            assert (unknown.status, unknown.code) == (404, "owner_unknown")

    asyncio.run(run())


def test_a_stored_response_is_asked_from_its_instance(door: Door) -> None:
    async def run() -> None:
        async with door(routing={"policy": "round_robin"}) as front:
            for _ in range(4):
                reply = await front.post("/v1/responses", {"input": "hi"})
                identifier, holder = reply.json()["id"], reply.headers["x-bana-instance"]
                assert identifier.startswith("resp_")
                for path in (f"/v1/responses/{identifier}",):
                    assert (await front.get(path)).json()["instance"] == holder
                cancelled = await front.post(f"/v1/responses/{identifier}/cancel", {})
                assert cancelled.json()["instance"] == holder
                follow = {"input": "more", "previous_response_id": identifier}
                assert (await front.post("/v1/responses", follow)).headers[
                    "x-bana-instance"
                ] == holder

    asyncio.run(run())


def test_a_hinted_session_prefers_its_instance(door: Door) -> None:
    async def run() -> None:
        async with door(routing={"policy": "round_robin"}) as front:
            body = {"text": "hi", "session_id": "s"}
            replies = [await front.post("/generate", body) for _ in range(4)]
            assert len({r.headers["x-bana-instance"] for r in replies}) == 1

    asyncio.run(run())


def test_an_owner_that_is_away_is_a_503_and_not_somebody_else(door: Door) -> None:
    async def run() -> None:
        async with door(StubSettings(name="a"), StubSettings(name="b", is_ready=False)) as front:
            identifier = f"resp_{mint_rid(tag_of('b'))}"
            reply = await front.get(f"/v1/responses/{identifier}")
            assert (reply.status, reply.code) == (503, "owner_unavailable")

    asyncio.run(run())
