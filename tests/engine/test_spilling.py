"""Half-computed prompts that lose their KV to tighter ones get it back from the arena."""

from __future__ import annotations

import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest

from sglang_bana.config import EngineConfig, SchedulingConfig

from .asks import NEW_TOKENS, Ask, body_of, is_empty, prompt_of, scheduling_of
from .conftest import Instance, StartInstance
from .store_process import StoreProcess

pytestmark = [pytest.mark.engine, pytest.mark.full, pytest.mark.timeout(900)]

ARGUMENTS = ("--chunked-prefill-size", "128", "--max-total-tokens", "1024")
LONGEST_S = 240.0


def draw_round(seed: int) -> tuple[list[Ask], list[Ask]]:
    """Loose prompts that fill the pool between them, and tight ones; no two rounds share any."""
    loose = [Ask(n, 600.0 - n / 100, 100 * seed + n) for n in (900, 700, 600)]
    tight = [Ask(n, 20.0, 100 * seed + n) for n in (40, 400, 90, 500)]
    return loose, tight


def answer_round(instance: Instance, seed: int) -> dict[Ask, list[int]]:
    """What the loose ones get, a moment apart, while the tight ones come all at once."""
    loose, tight = draw_round(seed)
    pause_s = Random(seed).uniform(0.0, 0.1)
    with ThreadPoolExecutor(8) as pool:
        asked = {}
        for ask in loose:
            asked[ask] = pool.submit(instance.request, "/generate", body_of(ask))
            time.sleep(pause_s)
        asked |= {a: pool.submit(instance.request, "/generate", body_of(a)) for a in tight}
        return {ask: list(answer.result(300)["output_ids"]) for ask, answer in asked.items()}


def test_who_gave_up_is_restored_and_answered_as_stock_answers(
    start_instance: StartInstance, llama_fixture: Path
) -> None:
    scheduling = SchedulingConfig(order="budget", governor="tpot")
    engine, end_s = EngineConfig(report_interval_s=0.02), time.monotonic() + LONGEST_S
    answers: dict[Ask, list[int]] = {}
    with tempfile.TemporaryDirectory(prefix="bana-", dir="/tmp") as root:
        store = StoreProcess(Path(root))
        store.start()
        options = {"engine": engine, "scheduling": scheduling}
        options["store_endpoint"] = store.address.endpoint
        try:
            with start_instance(llama_fixture, *ARGUMENTS, **options) as instance:
                missing, seed = {"given_up", "spilled", "restored"}, 0
                while missing:
                    assert time.monotonic() < end_s, f"never seen: {missing}"
                    seed += 1
                    answers |= answer_round(instance, seed)
                    counts = scheduling_of(instance, is_empty).counts
                    assert counts["faults"] == 0
                    link = instance.wait_report(is_empty, time.monotonic()).store
                    assert link is not None
                    assert link.counts["faults"] == 0
                    seen = {
                        "given_up": counts["given_up"],
                        "spilled": link.counts["spilled"],
                        "restored": link.tokens["arena"],
                    }
                    missing = {name for name, count in seen.items() if not count}
        finally:
            store.end()
    with start_instance(llama_fixture, *ARGUMENTS[:2]) as fresh:
        for ask, ids in answers.items():
            assert ids == fresh.greedy_ids(prompt_of(ask), NEW_TOKENS)
