"""Roles change at once, are kept over a restart, and bad ones are refused in one line."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bana.eval.stub import StubSettings
from bana.slo.errors import ConfigError
from bana.slo.roles import Role, Work, suits
from sglang_bana.cluster.control import DoorSilent, LiveRun, ask_roles
from sglang_bana.cluster.run_dir import RunDir
from sglang_bana.config import ROLES_NAME, UpstreamSpec
from sglang_bana.router.instances import InstanceBoard
from sglang_bana.router.roles import Roles
from sglang_bana.status import RunState

from .handoff_views import BODY, SPLIT, TOLD, is_empty, part_of

CONTROL = {"Authorization": "Bearer the-control-key"}
Door = Callable[..., AbstractAsyncContextManager[Any]]


def _board(*roles: Role) -> InstanceBoard:
    specs = [UpstreamSpec(f"i{n}", f"http://{n}", role=role) for n, role in enumerate(roles)]
    board = InstanceBoard(specs, 5.0)
    for instance in board.all():
        board.observe_ready(instance, 1.0)
    return board


def _names(instances: list[Any]) -> list[str]:
    return [instance.name for instance in instances]


def test_instances_begin_with_the_roles_of_the_launch(tmp_path: Path) -> None:
    roles = Roles(_board(Role.PREFILL, Role.DECODE, Role.BOTH), tmp_path / ROLES_NAME)
    assert roles.table().roles == {"i0": "prefill", "i1": "decode", "i2": "both"}
    assert roles.is_mixed
    assert _names(roles.usable(Work.PROMPT)) == ["i0", "i2"]
    assert _names(roles.usable(Work.ANSWER)) == ["i1", "i2"]
    assert _names(roles.usable(Work.ANSWER, {"i2"})) == ["i1"]
    assert _names(roles.usable(Work.ANY)) == ["i0", "i1", "i2"]
    assert not Roles(_board(Role.BOTH, Role.BOTH), tmp_path / ROLES_NAME).is_mixed


def test_whoever_is_up_does_what_is_nobodys(tmp_path: Path) -> None:
    board = _board(Role.PREFILL, Role.DECODE)
    roles = Roles(board, tmp_path / ROLES_NAME)
    board.observe_refusal(board.all()[1])
    assert _names(roles.usable(Work.ANSWER)) == ["i0"]
    assert roles.suited(Work.ANSWER) == []
    assert roles.warnings() == ()
    roles.change({"i1": Role.PREFILL})
    (warning,) = roles.warnings()
    assert warning.startswith("no instance has the role decode or both")


def test_one_that_is_busy_has_its_role_all_the_same(tmp_path: Path) -> None:
    board = _board(Role.PREFILL, Role.DECODE)
    board.all()[1].is_busy = True
    assert _names(Roles(board, tmp_path / ROLES_NAME).usable(Work.ANSWER)) == ["i1"]


def test_who_takes_no_work_leaves_it_to_those_who_do(tmp_path: Path) -> None:
    board = _board(Role.PREFILL, Role.DECODE)
    roles = Roles(board, tmp_path / ROLES_NAME)
    board.observe_answer(board.all()[1], 2.0)
    assert _names(roles.usable(Work.ANSWER)) == ["i0"]
    board.observe_answer(board.all()[0], 2.0)
    assert _names(roles.usable(Work.ANSWER)) == ["i0", "i1"]


def test_changes_are_kept_and_read_again(tmp_path: Path) -> None:
    file = tmp_path / ROLES_NAME
    told: list[bool] = []
    roles = Roles(_board(Role.BOTH, Role.BOTH), file)
    roles.listen(lambda: told.append(roles.is_mixed))
    roles.change({"i0": Role.PREFILL})
    assert told == [True]
    assert file.stat().st_mode & 0o077 == 0
    again = Roles(_board(Role.BOTH, Role.DECODE), file)
    assert again.table().roles == {"i0": "prefill", "i1": "both"}
    assert list(tmp_path.iterdir()) == [file]


def test_what_cannot_be_kept_changes_nothing(tmp_path: Path) -> None:
    roles = Roles(_board(Role.BOTH), tmp_path / "missing" / ROLES_NAME)
    with pytest.raises(OSError, match="No such file"):
        roles.change({"i0": Role.PREFILL})
    with pytest.raises(ConfigError, match=r"unknown instance 'i7' \(known: i0\)"):
        roles.change({"i0": Role.PREFILL, "i7": Role.DECODE})
    assert roles.table().roles == {"i0": "both"}
    assert not roles.is_mixed


@pytest.mark.parametrize("text", ["", "[]", '{"roles": {"i0": "chief"}}', '{"roles": 1}', "\xff"])
def test_a_file_that_cannot_be_read_is_shown_until_roles_are_set(tmp_path: Path, text: str) -> None:
    file = tmp_path / ROLES_NAME
    file.write_text(text, encoding="latin-1")
    roles = Roles(_board(Role.DECODE, Role.BOTH), file)
    assert roles.table().roles == {"i0": "decode", "i1": "both"}
    (warning,) = roles.warnings()
    assert str(file) in warning
    roles.change({"i0": Role.BOTH})
    assert roles.warnings() == ()


_ROLE = st.sampled_from(Role)


@given(
    first=st.lists(_ROLE, min_size=1, max_size=4),
    changes=st.lists(st.tuples(st.integers(0, 3), _ROLE), max_size=6),
    down=st.sets(st.integers(0, 3)),
)
def test_nobody_gets_foreign_work_while_its_own_people_are_up(
    tmp_path_factory: pytest.TempPathFactory,
    first: list[Role],
    changes: list[tuple[int, Role]],
    down: set[int],
) -> None:
    board = _board(*first)
    roles = Roles(board, tmp_path_factory.mktemp("r") / ROLES_NAME)
    expected = dict(enumerate(first))
    for place, role in changes:
        if place < len(first):
            roles.change({f"i{place}": role})
            expected[place] = role
    for place in down & set(expected):
        board.observe_refusal(board.all()[place])
    up = {n for n in expected if n not in down}
    assert roles.is_mixed is any(role is not Role.BOTH for role in expected.values())
    for work in Work:
        suited = {n for n in up if suits(expected[n], work)}
        assert _names(roles.usable(work)) == [f"i{n}" for n in sorted(suited or up)]
        assert _names(roles.suited(work)) == [f"i{n}" for n in sorted(suited)]


def test_roles_change_between_two_requests(door_with_roles: Door) -> None:
    async def run() -> None:
        async with door_with_roles(SPLIT) as front:
            assert (await front.post("/generate", BODY)).headers[TOLD] == "p"
            reply = await front.change_roles(p="decode", d="prefill")
            assert reply.json() == {"roles": {"d": "prefill", "p": "decode"}}
            reply = await front.post("/generate", BODY)
            assert (reply.headers["x-bana-instance"], reply.headers[TOLD]) == ("p", "d")
            await front.change_roles(p="both", d="both")
            assert TOLD not in (await front.post("/generate", BODY)).headers
            assert {i["role"] for i in (await front.status())["instances"]} == {"both"}
            metrics = (await front.get("/metrics")).body.decode()
            assert 'bana_instance_role{instance="d",role="both"} 1.0' in metrics
            assert 'bana_instance_role{instance="d",role="prefill"} 0.0' in metrics

    asyncio.run(run())


def test_roles_change_in_the_middle_of_a_request(door_with_roles: Door) -> None:
    async def run() -> None:
        slow = {"first_delay_s": 1.5}
        async with door_with_roles(SPLIT, on_p=slow, on_d=slow) as front:
            posting = asyncio.create_task(front.post("/generate", BODY))
            await front.wait_until(lambda: len(front.seen("/generate")) == 2)
            await front.change_roles(p="decode", d="prefill")
            reply = await posting
            assert (reply.status, reply.headers["x-bana-instance"]) == (200, "d")
            assert {part_of(seen) for seen in front.seen("/generate")} == {"prefill", "decode"}
            assert front.aborts() == []
            await front.wait_until(lambda: is_empty(front))

    asyncio.run(run())


def test_who_waits_for_a_role_goes_to_whoever_gets_it(door_with_roles: Door) -> None:
    async def run() -> None:
        limits = {"max_unanswered_per_instance": 1}
        slow = {"first_delay_s": 30.0}
        short = {"text": "hi"}
        async with door_with_roles(SPLIT, on_d=slow, limits=limits) as front:
            first = asyncio.create_task(front.post("/generate", short))
            await front.wait_until(lambda: front.asked("d", "/generate"))
            second = asyncio.create_task(front.post("/generate", short))

            async def is_waiting() -> bool:
                return bool((await front.status())["waiting"])

            await front.wait_until(is_waiting)
            # There is room for prompts all the time.
            assert (await front.post("/v1/embeddings", {"input": "hi"})).status == 200
            assert not second.done()
            await front.change_roles(p="both")
            assert (await second).headers["x-bana-instance"] == "p"
            first.cancel()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        (b"{", "invalid_json", 'send {"roles": {NAME: ROLE, …}}'),
        (b'{"role": {}}', "invalid_json", "send"),
        (b'{"roles": {"a": 1}}', "invalid_json", "send"),
        (b'{"roles": {"a": "prefil"}}', "invalid_request", "did you mean 'prefill'?"),
        (b'{"roles": {"z": "both"}}', "invalid_request", "unknown instance 'z' (known: a, b)"),
    ],
)
def test_bad_roles_are_refused(door: Door, body: bytes, code: str, words: str) -> None:
    async def run() -> None:
        async with door() as front:
            reply = await front.post("/bana/roles", body, CONTROL)
            assert (reply.status, reply.code) == (400, code)
            assert words in reply.error["message"]
            assert (await front.get("/bana/roles", CONTROL)).json() == {
                "roles": {"a": "both", "b": "both"}
            }

    asyncio.run(run())


def test_only_administrators_change_roles(door: Door) -> None:
    async def run() -> None:
        auth = {"api_key": "user", "admin_api_key": "admin"}
        async with door(auth=auth) as front:
            for key, status in (("", 401), ("user", 401), ("admin", 200)):
                told = {"Authorization": f"Bearer {key}"}
                reply = await front.post("/bana/roles", {"roles": {"a": "decode"}}, told)
                assert reply.status == status

    asyncio.run(run())


def test_roles_survive_the_front_door(
    door_process: Door, stub_processes: Any, tmp_path: Path
) -> None:
    async def run() -> None:
        stubs = stub_processes(StubSettings(name="a"), StubSettings(name="b"))
        async with door_process([(s.name, s.url) for s in stubs]) as front:
            assert (await front.change_roles(a="prefill")).status == 200
            front.process.kill()
            front.process.wait()
            await front.restart()
            told = (await front.get("/bana/roles", CONTROL)).json()
            assert told == {"roles": {"a": "prefill", "b": "both"}}
            assert json.loads((tmp_path / ROLES_NAME).read_bytes()) == told

    asyncio.run(run())


def test_other_commands_ask_and_change_roles(door: Door, tmp_path: Path) -> None:
    async def run() -> None:
        async with door() as front:
            run_dir = RunDir(tmp_path)
            run_dir.write_key("the-control-key")
            state = RunState("0", os.getpid(), 0, front.url, "m", "ready", ())
            live = LiveRun(run_dir, state)
            table = await asyncio.to_thread(ask_roles, live, {"b": Role.DECODE})
            assert table.roles == {"a": "both", "b": "decode"}
            assert await asyncio.to_thread(ask_roles, live) == table
            with pytest.raises(ConfigError, match="unknown instance 'c'"):
                await asyncio.to_thread(ask_roles, live, {"c": Role.DECODE})
            run_dir.key_file.unlink()
            with pytest.raises(DoorSilent, match="gives no answer"):
                await asyncio.to_thread(ask_roles, live)

    asyncio.run(run())
