"""Whatever happens to tiers and to other instances: right answers, no lost slot, nobody waits."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from bana.radix_global.admin_messages import OwnerStatus, StoreReport

from .conftest import Instance, StartInstance
from .store_asks import (
    CHUNK,
    NEW_TOKENS,
    STALL,
    Answer,
    ask,
    ask_at_once,
    check_alike,
    check_close,
    check_stalling,
    count_pages,
    disk,
    empty_device,
    hit_of,
    linked,
    prompt_of,
    restart,
    run_store,
    slow,
    wait_link,
    whole_pages,
)
from .store_process import StoreProcess, place_of

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]


class Engine(NamedTuple):
    """One instance, and its store."""

    store: StoreProcess
    instance: Instance

    def restart(self, *tiers: Any, **settings: Any) -> None:
        restart(self.store, [self.instance], *tiers, **settings)

    def fill(self, *prompts: list[int]) -> list[Answer]:
        """Have them computed and kept by every tier; what is answered once they are cached."""
        hits = [hit_of(self.instance, prompt) for prompt in prompts]
        self.store.wait_tier_pages(*[count_pages(prompts)] * 7)
        return hits


@pytest.fixture(scope="module")
def engine(start_instance: StartInstance, llama_fixture: Path) -> Iterator[Engine]:
    with run_store() as store, start_instance(llama_fixture, *CHUNK, **linked(store)) as instance:
        yield Engine(store, instance)


@pytest.mark.full
def test_requests_overtake_one_that_waits_for_a_slow_disk(engine: Engine, tmp_path: Path) -> None:
    long, short = prompt_of(900, seed=6), prompt_of(40, seed=7)
    engine.restart(disk(tmp_path / "a"))
    (hit,) = engine.fill(long)
    # A page takes 0.1 s, one at a time: the long prompt's, some six.
    engine.restart(disk(tmp_path / "a", width=1, throttle=slow(0.1)))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ask, engine.instance, long)
        wait_link(engine.instance, lambda link: link.held == 1)
        assert len(ask(engine.instance, short).ids) == NEW_TOKENS
        assert not waiting.done()
        restored = waiting.result()
    check_alike(restored, hit)
    assert restored.details["tier_1"] == whole_pages(long)


@pytest.mark.full
@pytest.mark.parametrize("placement", ["one", "all"])
def test_bad_reads_are_made_good(engine: Engine, tmp_path: Path, placement: str) -> None:
    """One in a hundred is corrupt or short: another disk has the page, or it is computed."""
    prompts = [prompt_of(900, seed=60 + n) for n in range(4)]
    tiers = [disk(tmp_path / name) for name in "ab"[: 1 + (placement == "all")]]
    engine.restart(*tiers, placement=placement)
    hits = engine.fill(*prompts)
    bad = {"corrupt": 0.005, "short": 0.005, "seed": 1.0}
    tiers[0] = disk(tmp_path / "a", faults=bad)
    # A few of the pages fit into the arena, so that each time they are read again.
    engine.restart(*tiers, placement=placement, arena_bytes=8 * 2**20)

    def has_met_faults(report: StoreReport) -> bool:
        counts = place_of(report, "a").counts
        return all(counts.get(f"reads_{kind}", 0) for kind in ("corrupt", "short"))

    for _ in range(40):
        for prompt, hit in zip(prompts, hits, strict=True):
            check_close(ask(engine.instance, prompt), hit)
        empty_device(engine.instance)
        if has_met_faults(engine.store.report()):
            break
    report = engine.store.wait_whole()
    assert has_met_faults(report)
    assert place_of(report, "a").counts["reads_read"] > 100


@pytest.mark.full
def test_a_stalled_tier_keeps_nobody_waiting(engine: Engine, tmp_path: Path) -> None:
    prompts = [prompt_of(300, seed=70 + n) for n in range(4)]
    sound = disk(tmp_path / "sound")
    engine.restart(disk(tmp_path / "stalled"), sound)
    hits = engine.fill(*prompts)
    stalled = disk(tmp_path / "stalled", faults=STALL)

    engine.restart(stalled, sound)
    answers = ask_at_once([(engine.instance, prompt) for prompt in prompts])
    for prompt, hit, got in zip(prompts, hits, answers, strict=True):
        check_close(got, hit)
        assert got.details["tier_2"] == got.cached_tokens == whole_pages(prompt)
    check_stalling(engine.store.report(), "stalled")
    engine.store.wait_whole()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB of its own."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(path)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("file systems cannot be mounted here")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.mark.full
def test_a_full_disk_keeps_what_it_has_and_the_rest_is_computed(
    engine: Engine, small_disk: Path
) -> None:
    tier = disk(small_disk / "a", capacity_bytes=6 * 2**20, options={"segment_bytes": 2**20})
    engine.restart(tier)
    others = small_disk / "others"
    others.write_bytes(bytes(6 * 2**20))
    prompts = [prompt_of(900, seed=80 + n) for n in range(2)]
    hits = [hit_of(engine.instance, prompt) for prompt in prompts]
    engine.store.await_report(lambda report: report.counts.get("writes_full", 0) > 5)
    # A daemon does not start with less room than its tiers are promised.
    others.unlink()
    engine.restart(tier)
    answers = [ask(engine.instance, prompt) for prompt in prompts]
    for hit, got in zip(hits, answers, strict=True):
        check_close(got, hit)
    assert sum(got.details.get("tier_1", 0) for got in answers) > 0
    assert any(
        got.cached_tokens < hit.cached_tokens for got, hit in zip(answers, hits, strict=True)
    )
    engine.store.wait_whole()


class Victim:
    """Another instance on the engine's store, to which things happen while it holds leases."""

    def __init__(self, engine: Engine, instance: Instance) -> None:
        self._engine = engine
        self._instance = instance

    def ask_and_lease(self, pool: ThreadPoolExecutor, prompt: list[int]) -> Future[Answer]:
        """The answer to come; its pages come one after the other, and some are there."""
        empty_device(self._instance)
        old = wait_link(self._instance, lambda link: link.state == "attached")
        answer = pool.submit(ask, self._instance, prompt)
        seen = old.client.get("arrived_pages", 0)
        wait_link(self._instance, lambda link: link.client.get("arrived_pages", 0) > seen)
        assert self.find_owner().leased_pages > 0
        return answer

    def signal(self, number: int) -> None:
        os.killpg(self._instance.process.pid, number)

    def find_owner(self) -> OwnerStatus:
        """What the store's daemon says of it."""
        pids = self._instance.scheduler_pids()
        owners = self._engine.store.report().owners
        return next(owner for owner in owners if owner.pid in pids)


def test_instances_that_freeze_or_die_with_leases_harm_nobody(
    engine: Engine,
    start_instance: StartInstance,
    llama_fixture: Path,
    tmp_path: Path,
) -> None:
    prompts = [prompt_of(900, seed=90), prompt_of(400, seed=91)]
    engine.restart(disk(tmp_path / "a"))
    hits = engine.fill(*prompts)
    tier = disk(tmp_path / "a", width=1, throttle=slow(0.15))
    linked_to = linked(engine.store)

    def check_survivor() -> None:
        for prompt, hit in zip(prompts, hits, strict=True):
            got = ask(engine.instance, prompt)
            check_alike(got, hit)
            assert got.cached_tokens == whole_pages(prompt)
        # The victim has not asked for the last one.
        assert got.details["tier_1"] == got.cached_tokens

    with (
        start_instance(llama_fixture, *CHUNK, **linked_to) as instance,
        ThreadPoolExecutor(1) as pool,
    ):
        victim = Victim(engine, instance)
        restart(engine.store, [engine.instance, instance], tier)
        frozen = victim.ask_and_lease(pool, prompts[0])
        victim.signal(signal.SIGSTOP)
        check_survivor()
        assert victim.find_owner().leased_pages > 0
        assert not frozen.done()
        victim.signal(signal.SIGCONT)
        woken = frozen.result()
        check_close(woken, hits[0])
        assert woken.details["storage"] > 0
        engine.store.wait_whole()

        restart(engine.store, [engine.instance, instance], tier)
        lost = victim.ask_and_lease(pool, prompts[0])
        victim.signal(signal.SIGKILL)
        assert isinstance(lost.exception(), OSError | HTTPException)
        assert instance.wait_end() == -signal.SIGKILL
        check_survivor()
        report = engine.store.wait_whole()
        assert (len(report.owners), report.counts["deaths"]) == (1, 1)
