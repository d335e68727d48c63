"""What tests of the store ask an instance, and what the instance says of its store."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bana.radix_global.admin_messages import StoreReport
from bana.slo.wire import LinkReport, LoadReport
from sglang_bana.config import StoreTierConfig

from .asks import promise_of
from .conftest import Instance
from .store_process import StoreProcess, place_of

PAGE = 16
NEW_TOKENS = 12
CHUNK = ("--chunked-prefill-size", "128")
# So small a model computes its prompts sooner than any disk reads them.
PATIENT = "always"
# What is due so late bounds no hold.
LATE_S = 600.0
# Longer than any test: who has his answer within one has not waited for it.
STALL = {"stall": 1.0, "stall_s": 3600.0}


class Answer(msgspec.Struct, frozen=True):
    """What a client can tell of an answer, and where its prompt came from."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    cached_tokens: int
    details: dict[str, Any]


def prompt_of(tokens: int, seed: int, shared: int = 0) -> list[int]:
    """The first `shared` tokens are those of every prompt."""
    common, own = random.Random(0), random.Random(seed)
    return [(common if i < shared else own).randrange(3, 400) for i in range(tokens)]


def ask(
    instance: Instance, prompt: list[int], ttft_s: float = LATE_S, adapter: str | None = None
) -> Answer:
    sampling = {
        "max_new_tokens": NEW_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "custom_params": promise_of(ttft_s, LATE_S),
    }
    body = {"input_ids": prompt, "sampling_params": sampling, "return_logprob": True}
    told = instance.request("/generate", {**body, "lora_path": adapter})
    meta = told["meta_info"]
    return Answer(
        ids=tuple(told["output_ids"]),
        logprobs=tuple(entry[0] for entry in meta["output_token_logprobs"]),
        cached_tokens=meta["cached_tokens"],
        details=meta.get("cached_tokens_details") or {},
    )


def ask_at_once(asked: Sequence[tuple[Instance, list[int]]]) -> list[Answer]:
    with ThreadPoolExecutor(len(asked)) as pool:
        return list(pool.map(ask, *zip(*asked, strict=True)))


def hit_of(instance: Instance, prompt: list[int], adapter: str | None = None) -> Answer:
    """Its answer once all of it is on the device."""
    ask(instance, prompt, adapter=adapter)
    hit = ask(instance, prompt, adapter=adapter)
    assert hit.details["device"] == hit.cached_tokens == whole_pages(prompt)
    return hit


def check_alike(got: Answer, hit: Answer) -> None:
    """The same in every bit."""
    assert (got.ids, got.logprobs) == (hit.ids, hit.logprobs)


def check_close(got: Answer, hit: Answer) -> None:
    """The same words, computed in other steps or beside others, whose sums round differently."""
    assert got.ids == hit.ids
    assert got.logprobs == pytest.approx(hit.logprobs, abs=1e-3)


def whole_pages(prompt: list[int]) -> int:
    """How many tokens of it can be restored: one is always computed."""
    return (len(prompt) - 1) // PAGE * PAGE


def count_pages(prompts: Iterable[list[int]]) -> int:
    """How many pages they make, those that they share once."""
    return len({tuple(p[:end]) for p in prompts for end in range(PAGE, len(p), PAGE)})


def link_of(report: LoadReport) -> LinkReport:
    assert report.store is not None
    return report.store


def wait_link(instance: Instance, is_so: Callable[[LinkReport], bool]) -> LinkReport:
    """What the instance says of its store from now on, once that is so."""
    now_s = time.monotonic()
    return link_of(instance.wait_report(lambda r: r.store is not None and is_so(r.store), now_s))


def await_saved(instance: Instance, pages: int) -> None:
    wait_link(instance, lambda link: link.client.get("published_pages", 0) >= pages)


def empty_device(instance: Instance) -> None:
    """Clear the prefix cache, by proof: from then on no token of the pool is used."""
    instance.flush_cache()
    flushed_s = time.monotonic()
    instance.wait_report(lambda r: r.used_tokens == 0 and not r.running_requests, flushed_s)


def restart(
    store: StoreProcess, instances: Sequence[Instance], *tiers: StoreTierConfig, **settings: Any
) -> None:
    """From now on only the tiers have pages: the arena is new, and the instances' devices empty."""
    store.kill()
    for instance in instances:
        wait_link(instance, lambda link: link.state == "away")
        empty_device(instance)
    store.order(*tiers, **settings)
    store.start()
    for instance in instances:
        wait_link(instance, lambda link: link.state == "attached")


@contextmanager
def run_store(arena_bytes: int = 64 * 2**20, **disk_settings: Any) -> Iterator[StoreProcess]:
    """A store with one disk, in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="bana-", dir="/tmp") as root:
        tier = disk(Path(root) / "disk", **disk_settings)
        store = StoreProcess(Path(root), tier, arena_bytes=arena_bytes)
        try:
            store.start()
            yield store
        finally:
            store.end()


def linked(store: StoreProcess) -> dict[str, Any]:
    """What an instance is started with that waits for the store's pages however long it takes."""
    return {"store_endpoint": store.address.endpoint, "restore": PATIENT}


def disk(path: Path, **more: Any) -> StoreTierConfig:
    settings = {
        "capacity_bytes": 256 * 2**20,
        "options": {"segment_bytes": 16 * 2**20},
        "name": path.name,
        **more,
    }
    return msgspec.structs.replace(StoreTierConfig(path=str(path)), **settings)


def check_stalling(report: StoreReport, tier: str) -> None:
    """Reads of that tier have begun, and none has come back."""
    counts = place_of(report, tier).counts
    assert counts["injected_stall"] > 0
    assert not any(n for name, n in counts.items() if name.startswith("reads_"))


def slow(latency_s: float) -> dict[str, float]:
    return {"bandwidth_bytes_per_s": 1e9, "latency_s": latency_s}
