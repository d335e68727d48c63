"""A prompt's keys, told by a cluster that only answers what it is asked here."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from bana.radix_global.keys import DIGEST_BYTES
from bana.slo.errors import ConfigError
from bana.slo.wire import LinkReport
from sglang_bana.cluster.control import DoorSilent
from sglang_bana.store import prompt_keys
from sglang_bana.store.prompt_keys import Tokens, find_prompt_keys, read_prompt

PAGE = 4
DIGESTS = tuple(bytes([rank] * DIGEST_BYTES).hex() for rank in (1, 2))
LINK = LinkReport("attached", "", False, 0, 0, {}, {}, {}, {}, page_tokens=PAGE, digests=DIGESTS)
RUN: Any = SimpleNamespace(state=SimpleNamespace(url="http://127.0.0.1:1"))


@pytest.fixture
def links(monkeypatch: pytest.MonkeyPatch) -> list[LinkReport | None]:
    """What the instances say of their store; a test may change it."""
    links: list[LinkReport | None] = [None, LINK]

    def answer(run: Any) -> Any:
        return SimpleNamespace(instances=[SimpleNamespace(link=link) for link in links])

    monkeypatch.setattr(prompt_keys, "ask_front_door", answer)
    return links


def write(folder: Path, text: str) -> str:
    file = folder / "prompt"
    file.write_text(text)
    return str(file)


@pytest.mark.parametrize(
    ("text", "prompt"),
    [
        ("What is it?\n", {"prompt": "What is it?\n"}),
        ("[1, 2, 3]", [1, 2, 3]),
        ('[{"role": "user", "content": "x"}]', {"messages": [{"role": "user", "content": "x"}]}),
        ("[]", {"prompt": "[]"}),
        ('{"role": "user"}', {"prompt": '{"role": "user"}'}),
    ],
)
def test_a_file_is_a_text_a_chat_or_ids(tmp_path: Path, text: str, prompt: object) -> None:
    assert read_prompt(write(tmp_path, text)) == prompt


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe"])
def test_what_is_no_prompt_is_refused(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "prompt"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match="prompt"):
        read_prompt(str(file))


def test_every_whole_page_has_a_key_of_its_rank(
    tmp_path: Path, links: list[LinkReport | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []

    def hashes(told: dict[str, Any]) -> list[str]:
        asked.append(told)
        return [f"{page:064x}" for page in range(len(told["token_ids"]) // PAGE)]

    monkeypatch.setattr(prompt_keys, "hash_pages", hashes)
    monkeypatch.setattr(
        prompt_keys, "ask_cluster", lambda run, path, body, kind: Tokens(list(range(9)))
    )
    of_text = [find_prompt_keys(RUN, write(tmp_path, "a text"), rank, "s") for rank in (0, 1)]
    assert [len(keys) for keys in of_text] == [2, 2]
    assert not set(of_text[0]) & set(of_text[1])
    assert find_prompt_keys(RUN, write(tmp_path, str(list(range(9)))), 0, "s") == of_text[0]
    assert {told["cache_salt"] for told in asked} == {"s"}


def test_keys_that_nobody_knows_are_refused(
    tmp_path: Path, links: list[LinkReport | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path, "[1, 2, 3, 4]")
    with pytest.raises(ConfigError, match="--rank 2, allowed: 0 to 1"):
        find_prompt_keys(RUN, file, 2, "")
    links[:] = [msgspec.structs.replace(LINK, digests=())]
    with pytest.raises(ConfigError, match="restart"):
        find_prompt_keys(RUN, file, 0, "")
    links[:] = [None]
    with pytest.raises(ConfigError, match=r"store\.enabled=true"):
        find_prompt_keys(RUN, file, 0, "")
    monkeypatch.setattr(prompt_keys, "ask_front_door", lambda run: None)
    with pytest.raises(DoorSilent):
        find_prompt_keys(RUN, file, 0, "")


def test_hashes_are_sglangs_own() -> None:
    # What a store knows them by is seen in `tests/engine`, where prompts were computed.
    hashes = prompt_keys.hash_pages({"token_ids": list(range(11)), "page_tokens": PAGE})
    assert len(set(hashes)) == 2
    assert {len(bytes.fromhex(page_hash)) for page_hash in hashes} == {32}
