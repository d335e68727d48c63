"""Sessions and stored responses go to the instance that holds them, even after a restart."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from bana.eval.stub import StubSettings
from sglang_bana.config import UpstreamSpec
from sglang_bana.router.ids import is_minted_response, mint_rid, read_tag, tag_of
from sglang_bana.router.instances import InstanceBoard
from sglang_bana.router.sticky import KEY_BYTES, Hold, StickyTable, make_key

ROUND = {"policy": "round_robin"}
Door = Callable[..., AbstractAsyncContextManager[Any]]


def _board() -> InstanceBoard:
    return InstanceBoard([UpstreamSpec(n, f"http://{n}") for n in ("a", "b")], 5.0)


def _key(identifier: str) -> bytes:
    return make_key(Hold.OWNER, "caller", identifier)


def test_minted_ids_name_their_instance_without_memory() -> None:
    rid = mint_rid(tag_of("b"))
    assert (len(rid), rid[12], read_tag(rid)) == (32, "8", tag_of("b"))
    table = StickyTable(_board(), 10)
    for identifier in (rid, f"resp_{rid}"):
        found = table.find_owner("caller", identifier)
        assert found is not None
        assert found.name == "b"
    assert table.find_owner("caller", "resp_unknown") is None


@pytest.mark.parametrize(
    ("text", "is_meant"),
    [
        ("resp_0123456789ab80123456789abcdef012", True),
        ("0123456789ab80123456789abcdef012", False),
        ("resp_0123456789ab80123456789abcdef0123", False),
        ("resp_0123456789ab40123456789abcdef012", False),
        ("resp_0123456789AB80123456789abcdef012", False),
        ("resp_mine", False),
    ],
)
def test_a_response_id_of_a_front_door_is_told_from_any_other(text: str, is_meant: bool) -> None:
    assert is_minted_response(text) is is_meant


def test_a_response_id_that_was_minted_is_one_of_a_front_door() -> None:
    assert is_minted_response(f"resp_{mint_rid(tag_of('b'))}") is True


@pytest.mark.parametrize("size", [0, 1, 256, 1_000_000])
def test_a_key_has_one_size_whatever_the_client_chose(size: int) -> None:
    assert len(make_key(Hold.OWNER, "caller", "x" * size)) == KEY_BYTES


def test_keys_differ_by_what_is_held_by_whom_and_under_which_id() -> None:
    names = ("a", "b", "a b", "a' 'b", "'", "\ud800", "")
    keys = [make_key(h, c, i) for h in Hold for c in names for i in names]
    assert len(set(keys)) == len(Hold) * len(names) ** 2


def test_the_table_forgets_the_least_recently_used() -> None:
    table = StickyTable(_board(), 2)
    table.remember(_key("one"), "a")
    table.remember(_key("two"), "b")
    assert table.find(_key("one")) is not None
    table.remember(_key("three"), "a")
    assert len(table) == 2
    assert table.find(_key("two")) is None
    assert table.find(_key("one")) is not None


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


def test_a_hinted_session_leaves_an_instance_that_takes_no_work(door: Door) -> None:
    async def run() -> None:
        async with door(routing={"policy": "round_robin"}) as front:
            body = {"text": "hi", "session_id": "s"}
            first = (await front.post("/generate", body)).headers["x-bana-instance"]
            home = next(s.server for s in front.stubs if s.server.settings.name == first)
            home.settings = msgspec.structs.replace(home.settings, is_ready=False)

            async def is_told() -> bool:
                told = (await front.status())["instances"]
                return any(i["trouble"] for i in told)

            await front.wait_until(is_told)
            again = (await front.post("/generate", body)).headers["x-bana-instance"]
            assert again != first

    asyncio.run(run())


def test_an_owner_that_is_away_is_a_503_and_not_somebody_else(door: Door) -> None:
    async def run() -> None:
        async with door(StubSettings(name="a"), StubSettings(name="b", is_ready=False)) as front:
            identifier = f"resp_{mint_rid(tag_of('b'))}"
            reply = await front.get(f"/v1/responses/{identifier}")
            assert (reply.status, reply.code) == (503, "owner_unavailable")

    asyncio.run(run())


def _session_server() -> Any:
    """`/open_session` as SGLang answers it: what is open already, or called bad, is refused."""
    opened: set[str] = set()

    async def open_session(request: web.Request) -> web.StreamResponse:
        session = (await request.json())["session_id"]
        if session in opened or session == "bad":
            return web.json_response({"error": {"message": f"no {session}"}}, status=400)
        opened.add(session)
        # Long enough for another request to come in between.
        await asyncio.sleep(0.1)
        return web.json_response(session)

    return open_session


def _write_keys(path: Path, *keys: str) -> str:
    rows = (
        f'[[keys]]\nname = "{key}"\nsha256 = "{hashlib.sha256(key.encode()).hexdigest()}"\n'
        for key in keys
    )
    path.write_text("\n".join(rows))
    return str(path)


def test_a_session_id_that_is_taken_is_refused_by_its_holder(
    door_before: Door, serving: Door
) -> None:
    async def run() -> None:
        async with (
            serving(open_session=_session_server()) as a,
            serving(open_session=_session_server()) as b,
            door_before([("a", a), ("b", b)], routing=ROUND) as front,
        ):
            first = await front.post("/open_session", {"session_id": "1"})
            assert first.status == 200
            holder = first.headers["x-bana-instance"]
            for _ in range(3):
                again = await front.post("/open_session", {"session_id": "1"})
                assert (again.status, again.headers["x-bana-instance"]) == (400, holder)
                body = {"text": "hi", "session_params": {"id": "1"}}
                used = await front.post("/generate", body)
                assert used.headers["x-bana-instance"] == holder

    asyncio.run(run())


def test_of_two_that_open_one_id_at_once_one_is_refused(door_before: Door, serving: Door) -> None:
    async def run() -> None:
        async with (
            serving(open_session=_session_server()) as a,
            serving(open_session=_session_server()) as b,
            door_before([("a", a), ("b", b)], routing=ROUND) as front,
        ):
            both = await asyncio.gather(
                *(front.post("/open_session", {"session_id": "1"}) for _ in range(2))
            )
            assert sorted(reply.status for reply in both) == [200, 400]
            assert len({reply.headers["x-bana-instance"] for reply in both}) == 1

    asyncio.run(run())


def test_an_opening_that_failed_is_not_remembered(door_before: Door, serving: Door) -> None:
    async def run() -> None:
        async with (
            serving(open_session=_session_server()) as a,
            door_before([("a", a)]) as front,
        ):
            assert (await front.post("/open_session", {"session_id": "bad"})).status == 400
            body = {"text": "hi", "session_params": {"id": "bad"}}
            assert (await front.post("/generate", body)).code == "owner_unknown"

    asyncio.run(run())


def test_a_callers_sessions_are_no_other_callers(door: Door, tmp_path: Path) -> None:
    async def run() -> None:
        keys = _write_keys(tmp_path / "keys.toml", "one", "two")
        async with door(auth={"keys_file": keys}, routing=ROUND) as front:
            one, two = ({"Authorization": f"Bearer {key}"} for key in ("one", "two"))
            assert (await front.post("/open_session", {"session_id": "s"}, one)).status == 200
            body = {"text": "hi", "session_params": {"id": "s"}}
            assert (await front.post("/generate", body, one)).status == 200
            assert (await front.post("/generate", body, two)).code == "owner_unknown"

    asyncio.run(run())


def test_a_response_is_found_again_through_two_front_doors(door: Door, door_on: Door) -> None:
    async def run() -> None:
        async with door(routing=ROUND) as inner, door_on(inner.url) as outer:
            holders = set()
            for _ in range(4):
                reply = await outer.post("/v1/responses", {"input": "hi"})
                identifier, holder = reply.json()["id"], reply.json()["model"]
                found = await outer.get(f"/v1/responses/{identifier}")
                assert (found.status, found.json()["instance"]) == (200, holder)
                follow = {"input": "more", "previous_response_id": identifier}
                assert (await outer.post("/v1/responses", follow)).json()["model"] == holder
                holders.add(holder)
            assert holders == {"a", "b"}

    asyncio.run(run())
