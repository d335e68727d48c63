"""Prompts whose first half is computed while the other one is read get the answers of any other."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import msgspec
import pytest

from bana.slo.wire import LinkReport
from sglang_bana.config import StoreTierConfig

from .conftest import Instance, StartInstance
from .store_asks import (
    CHUNK,
    NEW_TOKENS,
    PAGE,
    count_pages,
    disk,
    empty_device,
    prompt_of,
    run_store,
    wait_link,
)
from .store_process import StoreProcess

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

PROMPTS = [prompt_of(1600, seed=n) for n in (41, 42, 43)]
ROUNDS = 4


ASKED = sum(map(len, PROMPTS))


def time_computing(instance: Instance, prompt: list[int]) -> float:
    """Seconds to the first token of a prompt that has to be computed."""
    begun_s = time.monotonic()
    instance.greedy_ids(prompt, 1)
    return time.monotonic() - begun_s


def start_anew(store: StoreProcess, instance: Instance, *tiers: StoreTierConfig) -> LinkReport:
    """Neither the arena nor the device holds anything; `tiers` as before where none are given."""
    store.kill()
    wait_link(instance, lambda link: link.state == "away")
    empty_device(instance)
    if tiers:
        store.order(*tiers)
    store.start()
    return wait_link(instance, lambda link: link.state == "attached")


def answer_all(instance: Instance, before: LinkReport) -> tuple[list[list[int]], LinkReport]:
    """Greedy tokens of all prompts, one after the other, and what the instance says afterwards."""
    answers = [instance.greedy_ids(prompt, NEW_TOKENS) for prompt in PROMPTS]
    sources = sum(before.tokens.values()) + ASKED
    link = wait_link(instance, lambda link: sum(link.tokens.values()) >= sources)
    assert link.counts["faults"] == link.counts["failed_loads"] == 0
    return answers, link


def test_what_is_computed_and_what_is_read_meet_in_the_middle(
    start_instance: StartInstance, llama_fixture: Path, tmp_path: Path
) -> None:
    with run_store() as store:
        options = {"restore": "planned", "restore_options": {"meet": True}}
        options["store_endpoint"] = store.address.endpoint
        with start_instance(llama_fixture, *CHUNK, **options) as instance:
            walls_s = [time_computing(instance, prompt_of(1600, seed=n)) for n in (31, 32, 33)]
            # Reading a prompt takes as long as computing it.
            pages_bytes = len(PROMPTS[0]) // PAGE * store.report().slot_bytes
            throttle = {"bandwidth_bytes_per_s": pages_bytes / statistics.median(walls_s)}
            slow = msgspec.structs.replace(disk(tmp_path / "slow"), throttle=throttle)
            before = start_anew(store, instance, slow)
            computed, _ = answer_all(instance, before)
            store.wait_tier_pages(count_pages(PROMPTS))
            for _ in range(ROUNDS):
                # The first prompt tells how fast the tier is.
                before = start_anew(store, instance)
                answers, link = answer_all(instance, before)
                assert answers == computed
                gained = {name: n - before.tokens.get(name, 0) for name, n in link.tokens.items()}
                assert sum(gained.values()) == ASKED
                if link.counts["met"] > before.counts["met"]:
                    break
            assert link.counts["met"] > before.counts["met"]
            assert gained["tier_1"] > 0
            assert gained["computed"] > len(PROMPTS) * PAGE
            store.wait_whole()
