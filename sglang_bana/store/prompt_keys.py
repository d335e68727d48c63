"""The page keys of a prompt, as the instances of a running cluster ask for them.

file ─▶ token ids, by the cluster's own tokenizer ─▶ SGLang's hashes of pages ─▶ keys
"""

from __future__ import annotations

import contextlib
import subprocess
import sys

import msgspec

from bana.radix_global.keys import page_keys, split_keys
from bana.slo.errors import ConfigError
from bana.slo.wire import LinkReport
from sglang_bana.cluster.control import DoorSilent, LiveRun, ask_cluster, ask_front_door
from sglang_bana.config import expand_home

TOKENIZE_PATH = "/tokenize"
HASHES_MODULE = "sglang_bana.engine.page_hashes"
HASHES_TIMEOUT_S = 120.0
MAX_PROMPT_BYTES = 64 * 2**20


class Tokens(msgspec.Struct, frozen=True):
    """SGLang's answer."""

    tokens: list[int]


def find_prompt_keys(run: LiveRun, name: str, rank: int, cache_salt: str) -> list[bytes]:
    """The keys of the whole pages of the prompt in file `name`, on that rank, the first page first.

    ConfigError where the file is no prompt or no instance can tell, DoorSilent without an answer.
    """
    link = _find_link(run, rank)
    asked = {
        "token_ids": _tokenize(run, read_prompt(name)),
        "page_tokens": link.page_tokens,
        "cache_salt": cache_salt,
    }
    return split_keys(page_keys(bytes.fromhex(link.digests[rank]), hash_pages(asked)))


def read_prompt(name: str) -> list[int] | dict[str, object]:
    """Token ids, or what SGLang's /tokenize is asked: a text, or the messages of a chat."""
    try:
        raw = expand_home(name).read_bytes()
        text = raw.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot read a prompt from {name!r}: {error}; name a text file"
        ) from error
    if not 0 < len(raw) <= MAX_PROMPT_BYTES:
        raise ConfigError(
            f"{name!r} holds {len(raw)} bytes, allowed: 1 to {MAX_PROMPT_BYTES}; name another file"
        )
    with contextlib.suppress(msgspec.MsgspecError):
        if token_ids := msgspec.json.decode(raw, type=list[int]):
            return token_ids
    with contextlib.suppress(msgspec.MsgspecError):
        if messages := msgspec.json.decode(raw, type=list[dict[str, object]]):
            return {"messages": messages}
    return {"prompt": text}


def _find_link(run: LiveRun, rank: int) -> LinkReport:
    """What an instance says of its store."""
    door = ask_front_door(run)
    if door is None:
        raise DoorSilent(f"the front door at {run.state.url} gives no answer; see `bana status`")
    links = [entry.link for entry in door.instances if entry.link is not None]
    if not links:
        raise ConfigError(
            "no instance has told of a store; start the cluster with --set store.enabled=true, or "
            "ask again once an instance is ready"
        )
    named = [link for link in links if link.digests]
    if not named:
        raise ConfigError(
            "the weights of all instances were updated, so that ranks name pages each in their own "
            "way; restart them"
        )
    if not 0 <= rank < len(named[0].digests):
        raise ConfigError(f"--rank {rank}, allowed: 0 to {len(named[0].digests) - 1}; correct it")
    return named[0]


def _tokenize(run: LiveRun, prompt: list[int] | dict[str, object]) -> list[int]:
    if isinstance(prompt, list):
        return prompt
    return ask_cluster(run, TOKENIZE_PATH, msgspec.json.encode(prompt), Tokens).tokens


def hash_pages(asked: dict[str, object]) -> list[str]:
    """By SGLang itself, whose import takes seconds and is nothing for this process."""
    done = subprocess.run(
        [sys.executable, "-m", HASHES_MODULE],
        input=msgspec.json.encode(asked),
        capture_output=True,
        timeout=HASHES_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise ConfigError(
            f"SGLang's hash of KV pages does not load ({' '.join(said)}); install a C++ compiler "
            "and OpenSSL's headers"
        )
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=list[str])
