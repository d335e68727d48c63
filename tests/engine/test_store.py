"""A prompt that was never computed here is restored, and answered as a cached one would be."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bana.slo.wire import LinkReport
from sglang_bana.cluster.models import resolve_model
from sglang_bana.config import STOCK, SchedulingConfig

from .conftest import StartInstance
from .store_asks import (
    CHUNK,
    STALL,
    ask,
    ask_at_once,
    await_saved,
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

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

LEFT_TO_SGLANG = SchedulingConfig(order=STOCK, governor=STOCK)
TWO_RANKS = ("--tp-size", "2")
BFLOAT16 = ("--dtype", "bfloat16")


@pytest.fixture(scope="session")
def smollm2() -> Path:
    return Path(resolve_model("smollm2"))


def check_sources(before: LinkReport, after: LinkReport, prompts: list[list[int]]) -> None:
    """Each token of the prompts that were asked meanwhile has one source."""
    told = [sum(link.tokens.values()) for link in (before, after)]
    assert told[1] - told[0] == sum(map(len, prompts))
    assert after.counts["faults"] == after.counts["failed_loads"] == 0


@pytest.mark.parametrize(
    ("model", "arguments", "scheduling"),
    [
        ("llama_fixture", CHUNK, SchedulingConfig()),
        pytest.param(
            "qwen3_fixture",
            (*CHUNK, "--disable-overlap-schedule"),
            LEFT_TO_SGLANG,
            marks=pytest.mark.full,
        ),
        ("llama_fixture", (*CHUNK, *TWO_RANKS), SchedulingConfig()),
        pytest.param(
            "qwen3_fixture", (*CHUNK, *BFLOAT16), SchedulingConfig(), marks=pytest.mark.full
        ),
        pytest.param("smollm2", CHUNK, SchedulingConfig(), marks=pytest.mark.full),
        pytest.param("smollm2", (*CHUNK, *BFLOAT16), SchedulingConfig(), marks=pytest.mark.full),
        pytest.param(
            "qwen3_fixture",
            (*CHUNK, *TWO_RANKS, *BFLOAT16),
            SchedulingConfig(),
            marks=pytest.mark.full,
        ),
    ],
    ids=[
        "overlapped",
        "in turn, left to SGLang",
        "two ranks",
        "bfloat16",
        "SmolLM2",
        "SmolLM2 in bfloat16",
        "two ranks in bfloat16",
    ],
)
def test_prompts_are_restored_from_arena_and_disk(
    start_instance: StartInstance,
    request: pytest.FixtureRequest,
    model: str,
    arguments: tuple[str, ...],
    scheduling: SchedulingConfig,
) -> None:
    folder = request.getfixturevalue(model)
    ranks = 2 if "--tp-size" in arguments else 1
    prompts = [prompt_of(n, seed, shared=48) for seed, n in enumerate((60, 333, 700), start=1)]
    pages = count_pages(prompts)
    with run_store(arena_bytes=2**28) as store:
        options = {
            "scheduling": scheduling,
            "environment": {"SGLANG_CPU_OMP_THREADS_BIND": "0|1"} if ranks == 2 else {},
            **linked(store),
        }
        with start_instance(folder, *arguments, **options) as first:
            computed = [ask(first, prompt) for prompt in prompts]
            hits = [hit_of(first, prompt) for prompt in prompts]
            await_saved(first, pages)
            link = wait_link(first, lambda link: link.tokens["device"] > 0)
            assert link.tokens["arena"] == 0
        store.wait_tier_pages(pages * ranks)

        with start_instance(folder, *arguments, **options) as second:
            fresh = wait_link(second, lambda link: link.state == "attached")
            restored = [ask(second, prompt) for prompt in prompts]
            for prompt, hit, got in zip(prompts, hits, restored, strict=True):
                check_alike(got, hit)
                assert got.cached_tokens == whole_pages(prompt)
            # The later prompts find the shared beginning on the device.
            assert [a.details["host"] for a in restored] == [48, 272, 640]
            link = wait_link(second, lambda link: link.tokens["arena"] == 960)
            assert link.restored_pages["arena"] == 60

            empty_device(second)
            store.kill()
            wait_link(second, lambda link: link.state == "away")
            alone = [ask(second, prompt) for prompt in prompts]
            assert [a.ids for a in alone] == [a.ids for a in computed]

            empty_device(second)
            store.start()
            wait_link(second, lambda link: link.state == "attached")
            from_disk = [ask(second, prompt) for prompt in prompts]
            for hit, got in zip(hits, from_disk, strict=True):
                check_alike(got, hit)
            assert [a.details.get("tier_1") for a in from_disk] == [48, 272, 640]
            link = wait_link(second, lambda link: link.tokens.get("tier_1") == 960)
            check_sources(fresh, link, prompts * 3)


@pytest.mark.full
@pytest.mark.parametrize("ranks", [1, 2])
def test_other_weights_get_other_answers_and_no_page(
    start_instance: StartInstance, llama_fixture: Path, other_llama_fixture: Path, ranks: int
) -> None:
    prompt = prompt_of(200, seed=5)
    arguments = (*CHUNK, *(TWO_RANKS if ranks == 2 else ()))
    bind = {"SGLANG_CPU_OMP_THREADS_BIND": "0|1" if ranks == 2 else "0"}
    with (
        run_store() as store,
        start_instance(llama_fixture, *arguments, environment=bind, **linked(store)) as instance,
    ):
        # The pages of the first weights must not be taken for those of the same weights again.
        hits = []
        models = (llama_fixture, other_llama_fixture, llama_fixture)
        for epoch, model in enumerate(models):
            if epoch:
                weights = {"model_path": str(model), "flush_cache": True}
                assert instance.request("/update_weights_from_disk", weights)["success"]
            assert ask(instance, prompt).cached_tokens == 0
            hits.append(hit_of(instance, prompt))
            link = wait_link(instance, lambda link, e=epoch: link.counts["epochs"] == e)
            assert not link.is_resting
            # With each weights the prompt's pages, and the one that its answer completes.
            await_saved(instance, 13 * (epoch + 1))
            empty_device(instance)
            restored = ask(instance, prompt)
            check_alike(restored, hits[-1])
            assert restored.details["host"] == 192
        assert hits[0].ids == hits[2].ids != hits[1].ids


@pytest.mark.full
def test_a_slow_or_stalled_disk_costs_no_more_than_it_is_worth(
    start_instance: StartInstance, llama_fixture: Path, tmp_path: Path
) -> None:
    """Nobody else has the pages."""
    prompts = [prompt_of(900, seed=8), prompt_of(500, seed=9)]
    with run_store() as store:
        options = {"store_endpoint": store.address.endpoint}
        with start_instance(llama_fixture, *CHUNK, **options) as instance:
            restart(store, [instance], disk(tmp_path / "a"))
            hits = [hit_of(instance, prompt) for prompt in prompts]
            store.wait_tier_pages(count_pages(prompts))

            restart(store, [instance], disk(tmp_path / "a", width=1, throttle=slow(5.0)))
            before = wait_link(instance, lambda link: link.held == 0).counts["late_holds"]
            check_close(ask(instance, prompts[0]), hits[0])
            link = wait_link(instance, lambda link: link.counts["late_holds"] > before)
            assert (link.held, link.wants) == (0, 0)

            restart(store, [instance], disk(tmp_path / "a", faults=STALL))
            answers = ask_at_once([(instance, prompt) for prompt in prompts])
            for hit, got in zip(hits, answers, strict=True):
                check_close(got, hit)
                assert got.cached_tokens == 0
            link = wait_link(instance, lambda link: link.held == link.wants == 0)
            assert link.counts["faults"] == 0
            check_stalling(store.report(), "a")


@pytest.mark.full
def test_a_load_that_fails_is_computed_and_nobody_gets_an_error(
    start_instance: StartInstance, qwen3_fixture: Path
) -> None:
    """Of two ranks each begins to load what it has been told of, and finds out afterwards."""
    prompt, other = prompt_of(600, seed=9), prompt_of(300, seed=10)
    with run_store(width=1, throttle=slow(0.1)) as store:
        options = {
            "environment": {"SGLANG_CPU_OMP_THREADS_BIND": "0|1"},
            **linked(store),
        }
        with start_instance(qwen3_fixture, *CHUNK, "--tp-size", "2", **options) as instance:
            computed = [ask(instance, p) for p in (prompt, other)]
            await_saved(instance, 37 + 18)
            store.wait_tier_pages(2 * (37 + 18))
            empty_device(instance)
            store.kill()
            store.start()
            wait_link(instance, lambda link: link.state == "attached")
            begun = wait_link(instance, lambda link: link.held == 0).client
            with ThreadPoolExecutor(2) as pool:
                answers = [pool.submit(ask, instance, p) for p in (prompt, other)]
                seen = begun.get("arrived_pages", 0)
                wait_link(instance, lambda link: link.client.get("arrived_pages", 0) > seen)
                store.give_slots_away()
                assert [answer.result().ids for answer in answers] == [a.ids for a in computed]
            link = wait_link(instance, lambda link: link.counts["recomputed"] > 0)
            assert link.counts["failed_loads"] > 0
            assert link.counts["faults"] == 0
            assert (link.held, link.wants) == (0, 0)
