"""Keys open what they should, fix a class, separate caches, and are reloaded hot."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from bana.slo.errors import ConfigError
from sglang_bana.config import AuthConfig
from sglang_bana.router.endpoints import Access
from sglang_bana.router.errors import ApiError
from sglang_bana.router.keys import Keyring

CHAT = "/v1/chat/completions"
HELLO = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
CLASSES = ("interactive", "standard", "batch")
Door = Callable[..., AbstractAsyncContextManager[Any]]


def _bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def _write_keys(path: Path, **keys: str) -> None:
    rows = []
    for name, key in keys.items():
        rows.append(f'[[keys]]\nname = "{name}"\nsha256 = "{_sha(key)}"\n')
    path.write_text("\n".join(rows))


def _sha(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def _keyring(**auth: str) -> Keyring:
    return Keyring(AuthConfig(**auth), "control", CLASSES)


def test_every_endpoint_but_probes_needs_the_key(door: Door) -> None:
    async def run() -> None:
        async with door(auth={"api_key": "k1"}) as front:
            for path in ("/v1/models", "/server_info", "/metrics", "/v1/loads", "/bana/status"):
                reply = await front.get(path)
                assert (reply.status, reply.code) == (401, "invalid_api_key")
            for headers in ({}, _bearer("wrong"), {"Authorization": "k1"}, _bearer("")):
                assert (await front.post(CHAT, HELLO, headers)).status == 401
            assert not front.seen(CHAT)
            for path in ("/livez", "/readyz", "/health", "/ready", "/health_generate", "/ping"):
                assert (await front.get(path)).status == 200
            assert (await front.post(CHAT, HELLO, _bearer("k1"))).status == 200
            assert (await front.post(CHAT, HELLO, {"x-api-key": "k1"})).status == 200
            assert (await front.get("/metrics", _bearer("k1"))).status == 200

    asyncio.run(run())


def test_without_keys_anybody_may_ask_but_not_administer(door: Door) -> None:
    async def run() -> None:
        async with door() as front:
            assert (await front.post(CHAT, HELLO, _bearer("EMPTY"))).status == 200
            reply = await front.post("/flush_cache")
            assert (reply.status, reply.code) == (403, "admin_key_unset")
            assert "--admin-api-key" in reply.error["message"]
            assert (await front.get("/bana/status")).status == 401

    asyncio.run(run())


@pytest.mark.parametrize(
    ("auth", "key", "opened"),
    [
        ({}, None, {Access.PUBLIC, Access.USER}),
        ({"api_key": "k"}, None, {Access.PUBLIC}),
        ({"api_key": "k"}, "k", {Access.PUBLIC, Access.USER}),
        ({"api_key": "k", "admin_api_key": "a"}, "a", set(Access)),
        ({"api_key": "k", "admin_api_key": "a"}, "k", {Access.PUBLIC, Access.USER}),
        ({"admin_api_key": "a"}, None, {Access.PUBLIC, Access.USER}),
        ({"api_key": "k"}, "control", {Access.PUBLIC, Access.USER, Access.CONTROL}),
    ],
)
def test_a_key_opens_exactly_this(
    auth: dict[str, str], key: str | None, opened: set[Access]
) -> None:
    ring = _keyring(**auth)
    grant = ring.identify(None if key is None else f"Bearer {key}", None)
    for access in Access:
        if access in opened:
            ring.authorise(grant, access)
        else:
            with pytest.raises(ApiError):
                ring.authorise(grant, access)


def test_a_keys_file_fixes_the_class_which_a_header_only_lowers(door: Door, tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(
        f'[[keys]]\nname = "t"\nsha256 = "{_sha("k")}"\nslo_class = "standard"\n'
        'cache_salt = "t-salt"\n'
    )

    async def run() -> None:
        async with door(auth={"keys_file": str(keys)}) as front:
            reply = await front.post(CHAT, HELLO, _bearer("k"))
            assert reply.headers["x-bana-slo-class"] == "standard"
            lower = await front.post(CHAT, HELLO, {**_bearer("k"), "x-bana-slo-class": "batch"})
            assert lower.headers["x-bana-slo-class"] == "batch"
            raised = await front.post(
                CHAT, HELLO, {**_bearer("k"), "x-bana-slo-class": "interactive"}
            )
            assert (raised.status, raised.code) == (400, "slo_class_not_allowed")
            salted = await front.post(CHAT, {**HELLO, "cache_salt": "mine"}, _bearer("k"))
            assert salted.status == 200
            salts = sorted(seen.body["cache_salt"] for seen in front.seen(CHAT))
            assert salts == ["t-salt", "t-salt", "t-salt:mine"]
            unsalted = await front.post("/v1/messages", HELLO, _bearer("k"))
            assert (unsalted.status, unsalted.code) == (400, "cache_salt_unsupported")

    asyncio.run(run())


def test_a_changed_keys_file_is_taken_and_a_broken_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    _write_keys(path, first="k1")
    ring = _keyring(keys_file=str(path))
    assert ring.identify("Bearer k1", None).name == "first"
    assert not ring.reload()
    _write_keys(path, second="k2")
    os.utime(path, ns=(1, 1))
    assert ring.reload()
    assert ring.identify("Bearer k1", None).name == ""
    assert ring.identify("Bearer k2", None).name == "second"
    path.write_text("[[keys]]\nname = 1\n")
    os.utime(path, ns=(2, 2))
    assert not ring.reload()
    assert ring.fault is not None
    assert "stay in force" in ring.fault
    assert ring.identify("Bearer k2", None).name == "second"
    path.unlink()
    assert not ring.reload()
    assert ring.identify("Bearer k2", None).name == "second"
    # It comes back as old as the one read last.
    _write_keys(path, third="k3")
    os.utime(path, ns=(2, 2))
    assert ring.reload()
    assert ring.fault is None
    assert ring.identify("Bearer k3", None).name == "third"


def test_a_door_takes_a_changed_keys_file(door: Door, tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    _write_keys(path, first="k1")

    async def run() -> None:
        async with door(auth={"keys_file": str(path)}) as front:
            assert (await front.post(CHAT, HELLO, _bearer("k2"))).status == 401
            _write_keys(path, second="k2")
            os.utime(path, ns=(1, 1))

            async def is_taken() -> bool:
                return bool((await front.post(CHAT, HELLO, _bearer("k2"))).status == 200)

            await front.wait_until(is_taken)
            path.write_text("nonsense")

            async def is_told() -> bool:
                return any("keys_file" in w for w in (await front.status())["warnings"])

            await front.wait_until(is_told)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ('[[keys]]\nname = "a"\nsha256 = "12"\n', "sha256"),
        ('[[keys]]\nname = "a"\n', "sha256"),
        ("nonsense", "repair it"),
        (f'[[keys]]\nname = "a"\nsha256 = "{"0" * 64}"\nslo_class = "gold"\n', "batch"),
        (f'[[keys]]\nname = "a"\nsha256 = "{"0" * 64}"\nextra = 1\n', "extra"),
        (
            "".join(f'[[keys]]\nname = "{n}"\nsha256 = "{d * 64}"\n' for n, d in ("aA", "ba")),
            "'a' and 'b' have the same key",
        ),
    ],
)
def test_a_broken_keys_file_is_refused_at_start(tmp_path: Path, text: str, part: str) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=part):
        _keyring(keys_file=str(path))


def test_a_missing_keys_file_is_refused_at_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        _keyring(keys_file=str(tmp_path / "none.toml"))


def test_a_keys_file_may_be_named_from_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    _write_keys(tmp_path / "keys.toml", first="k1")
    ring = _keyring(keys_file="~/keys.toml")
    assert ring.identify("Bearer k1", None).name == "first"
    _write_keys(tmp_path / "keys.toml", second="k2")
    os.utime(tmp_path / "keys.toml", ns=(1, 1))
    assert ring.reload()
    assert ring.identify("Bearer k2", None).name == "second"


def test_audio_of_a_key_with_its_own_cache_is_refused(door: Door, tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(f'[[keys]]\nname = "t"\nsha256 = "{_sha("k")}"\ncache_salt = "t-salt"\n')

    async def run() -> None:
        async with door(auth={"keys_file": str(keys)}) as front:
            path = "/v1/audio/transcriptions"
            sent = {**_bearer("k"), "Content-Type": "multipart/form-data; boundary=x"}
            reply = await front.post(path, b"--x--\r\n", sent)
            assert (reply.status, reply.code) == (400, "cache_salt_unsupported")
            assert not front.seen(path)
            # What holds no prompt is cached by nobody.
            assert (await front.post("/v1/tokenize", {}, _bearer("k"))).status == 200

    asyncio.run(run())
