"""Pages that lie in several places, and instances that need them at the same time."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from bana.slo.wire import LinkReport

from .conftest import Instance, StartInstance
from .store_asks import (
    CHUNK,
    PAGE,
    ask,
    ask_at_once,
    check_alike,
    check_close,
    disk,
    empty_device,
    hit_of,
    linked,
    prompt_of,
    restart,
    run_store,
    wait_link,
    whole_pages,
)
from .store_process import StoreProcess

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

LONG = prompt_of(900, seed=21)
TIERS = ("tier_1", "tier_2")


class Pair(NamedTuple):
    """Two instances of one model on one store; `second` never computes what it is to restore."""

    store: StoreProcess
    first: Instance
    second: Instance

    @property
    def instances(self) -> tuple[Instance, Instance]:
        return self.first, self.second


@pytest.fixture(scope="module")
def pair(spawn_instance: StartInstance, llama_fixture: Path) -> Iterator[Pair]:
    with run_store() as store, ExitStack() as stack:
        instances = [
            stack.enter_context(
                spawn_instance(
                    llama_fixture,
                    *CHUNK,
                    environment={"SGLANG_CPU_OMP_THREADS_BIND": core},
                    **linked(store),
                )
            )
            for core in "01"
        ]
        for instance in instances:
            instance.wait_ready()
        yield Pair(store, *instances)
        for instance in instances:
            assert instance.stop() == 0, instance.log_tail()


def tokens_since(instance: Instance, before: LinkReport, prompt_tokens: int) -> dict[str, int]:
    """Where the tokens of prompts came from, once so many have a source."""

    def grown(link: LinkReport) -> dict[str, int]:
        return {name: n - before.tokens.get(name, 0) for name, n in link.tokens.items()}

    link = wait_link(instance, lambda link: sum(grown(link).values()) >= prompt_tokens)
    assert sum(grown(link).values()) == prompt_tokens
    assert link.counts["faults"] == link.counts["failed_loads"] == 0
    return {name: tokens for name, tokens in grown(link).items() if tokens}


def test_a_prompt_is_put_together_from_two_disks_and_the_arena(pair: Pair, tmp_path: Path) -> None:
    disks = [disk(tmp_path / name) for name in "ab"]
    restart(pair.store, pair.instances, *disks, placement="one")
    hit = hit_of(pair.first, LONG)
    pages = len(LONG) // PAGE
    pair.store.await_report(lambda r: sum(place.pages for place in r.places[1:]) == pages)

    # The first has it on its device, but no store to find the rest in.
    pair.store.kill()
    wait_link(pair.first, lambda link: link.state == "away")
    longer = LONG + prompt_of(200, seed=22)
    continued = ask(pair.first, longer)
    assert continued.details["device"] == continued.cached_tokens == whole_pages(LONG)

    restart(pair.store, [pair.second], *disks, placement="one")
    before = wait_link(pair.second, lambda link: link.state == "attached")
    check_alike(ask(pair.second, LONG), hit)
    tokens = tokens_since(pair.second, before, len(LONG))
    assert set(tokens) == {*TIERS, "computed"}
    assert sum(tokens[tier] for tier in TIERS) == whole_pages(LONG)

    restart(pair.store, [pair.second], *disks, placement="one")
    ask(pair.second, LONG[:401])
    empty_device(pair.second)
    before = wait_link(pair.second, lambda link: link.state == "attached")
    mixed = ask(pair.second, LONG)
    check_alike(mixed, hit)
    tokens = tokens_since(pair.second, before, len(LONG))
    assert set(tokens) == {"arena", *TIERS, "computed"}
    assert tokens["arena"] == whole_pages(LONG[:401])
    assert [mixed.details[tier] for tier in TIERS] == [tokens[tier] for tier in TIERS]
    assert mixed.cached_tokens == sum(tokens.values()) - tokens["computed"]

    restart(pair.store, [pair.second], *disks, placement="one")
    partial = ask(pair.second, longer)
    check_alike(partial, continued)
    assert partial.cached_tokens == sum(partial.details[tier] for tier in TIERS)
    assert partial.cached_tokens == whole_pages(LONG)
    pair.store.wait_whole()


@pytest.mark.full
def test_the_second_disk_alone_serves_what_the_first_has_lost(pair: Pair, tmp_path: Path) -> None:
    disks = [disk(tmp_path / name) for name in "ab"]
    restart(pair.store, pair.instances, *disks, placement="all")
    hit = hit_of(pair.first, LONG)
    pair.store.wait_tier_pages(*[len(LONG) // PAGE] * 2)
    pair.store.kill()
    shutil.rmtree(tmp_path / "a")
    restart(pair.store, [pair.second], *disks, placement="all")
    before = wait_link(pair.second, lambda link: link.state == "attached")
    restored = ask(pair.second, LONG)
    check_alike(restored, hit)
    assert restored.details["tier_2"] == restored.cached_tokens == whole_pages(LONG)
    assert set(tokens_since(pair.second, before, len(LONG))) == {"tier_2", "computed"}
    # What one disk has lost comes back to it with the reads.
    pair.store.wait_tier_pages(len(LONG) // PAGE)
    pair.store.wait_whole()


@pytest.mark.full
def test_instances_share_what_both_need_at_the_same_time(pair: Pair, tmp_path: Path) -> None:
    common = [prompt_of(tokens, seed=tokens, shared=160) for tokens in (400, 600)]
    both = [(instance, prompt) for instance in pair.instances for prompt in common]
    pair.store.kill()
    for instance in pair.instances:
        wait_link(instance, lambda link: link.state == "away")
        empty_device(instance)
    alone = ask_at_once(both)
    for one, other in zip(alone[:2], alone[2:], strict=True):
        check_close(one, other)
    pair.store.order(disk(tmp_path / "a"))
    pair.store.start()
    for instance in pair.instances:
        wait_link(instance, lambda link: link.state == "attached")

    # Both have the same pages to give now, and go on to need the same ones.
    own = [[prompt_of(n, seed=n, shared=160) for n in (300 + i, 500 + i)] for i in range(2)]
    asked = [
        (instance, prompt)
        for instance, mine in zip(pair.instances, own, strict=True)
        for prompt in [*mine, *(known + prompt_of(90, seed=31) for known in common)]
    ]
    answers = ask_at_once(asked)
    for one, other in zip(answers[2:4], answers[6:8], strict=True):
        check_close(one, other)
    pair.store.await_report(lambda report: report.counts.get("known_already_pages", 0) > 0)
    pair.store.wait_whole()

    for instance in pair.instances:
        empty_device(instance)
    # The second wants what the first is computing, and each what the other has computed.
    running = prompt_of(2000, seed=29)
    before = [wait_link(instance, lambda link: link.held == 0) for instance in pair.instances]
    seen = before[0].client.get("published_pages", 0)
    swapped = [
        (instance, prompt)
        for instance, others in zip(pair.instances, reversed(own), strict=True)
        for prompt in others
    ]
    with ThreadPoolExecutor(2) as pool:
        whole = pool.submit(ask, pair.first, running)
        wait_link(pair.first, lambda link: link.client.get("published_pages", 0) > seen)
        joined = pool.submit(ask, pair.second, running)
        there = [*answers[4:6], *answers[:2]]
        for got, computed in zip(ask_at_once(swapped), there, strict=True):
            check_close(got, computed)
        check_close(joined.result(), whole.result())
        assert joined.result().details["host"] > 0
    for instance, old in zip(pair.instances, before, strict=True):
        link = wait_link(instance, lambda link, o=old: link.tokens["arena"] > o.tokens["arena"])
        assert link.counts["faults"] == 0
    pair.store.wait_whole()
