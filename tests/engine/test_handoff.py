"""One instance computes a prompt, another one answers it, and nothing that fails is noticed."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bana.radix_global.admin_messages import AskPage, PageFacts
from bana.radix_global.keys import page_keys, split_keys
from bana.slo.handoff import HANDOFF_PARAM, Handoff
from bana.slo.wire import LinkReport
from sglang_bana.config import EngineConfig
from sglang_bana.store.asking import ask_store
from sglang_bana.store.prompt_keys import hash_pages

from .asks import NEW_TOKENS
from .conftest import Instance, StartInstance
from .store_asks import empty_device, prompt_of, wait_link
from .store_process import StoreProcess

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

PAGE = 16
ARGUMENTS = ("--chunked-prefill-size", "128")
PROMPT_TOKENS = (60, 700, 1300)
LOGPROB_TOLERANCE = 2e-4


class Pair(msgspec.Struct):
    """A prefill instance and a decode instance on one store."""

    prefill: Instance
    decode: Instance
    store: StoreProcess


def ask(instance: Instance, prompt: list[int], part: Handoff = Handoff.NONE) -> dict[str, Any]:
    """The answer; of a prompt that is computed for another instance, one token of it."""
    sampling = {
        "max_new_tokens": 1 if part is Handoff.PREFILL else NEW_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "custom_params": {HANDOFF_PARAM: part} if part else {},
    }
    body = {"input_ids": prompt, "sampling_params": sampling, "return_logprob": True}
    return dict(instance.request("/generate", body))


def outcome(answer: dict[str, Any]) -> tuple[list[int], list[float]]:
    logprobs = [entry[0] for entry in answer["meta_info"]["output_token_logprobs"]]
    return answer["output_ids"], logprobs


def hand_over(pair: Pair, pool: ThreadPoolExecutor, prompt: list[int]) -> tuple[Future, Future]:  # type: ignore[type-arg]
    """Have both parts of a request begun at once, as a front door does."""
    first = pool.submit(ask, pair.prefill, prompt, Handoff.PREFILL)
    return first, pool.submit(ask, pair.decode, prompt, Handoff.DECODE)


def now_link(instance: Instance) -> LinkReport:
    return wait_link(instance, lambda link: not link.held and not link.wants)


@pytest.fixture
def pair(start_instance: StartInstance, llama_fixture: Path) -> Iterator[Pair]:
    with tempfile.TemporaryDirectory(prefix="bana-", dir="/tmp") as root:
        store = StoreProcess(Path(root))
        store.start()
        options = {"engine": EngineConfig(report_interval_s=0.02)}
        options["store_endpoint"] = store.address.endpoint
        # So small a model computes sooner than a busy machine lets the other side begin.
        options["restore"] = "always"
        cores = [{"SGLANG_CPU_OMP_THREADS_BIND": core} for core in "01"]
        try:
            with (
                start_instance(llama_fixture, *ARGUMENTS, environment=cores[0], **options) as one,
                start_instance(llama_fixture, *ARGUMENTS, environment=cores[1], **options) as two,
            ):
                yield Pair(one, two, store)
        finally:
            store.end()


def test_prompts_are_handed_over_and_whatever_ends_on_the_way_is_computed(pair: Pair) -> None:
    check_handing_over(pair)
    check_endings(pair)


def check_handing_over(pair: Pair) -> None:
    """What one instance has computed the other one answers as if it had computed it itself."""
    prompts = [prompt_of(tokens, seed=20 + tokens) for tokens in PROMPT_TOKENS]
    alone = [ask(pair.decode, prompt) for prompt in prompts]
    hits = [outcome(ask(pair.decode, prompt)) for prompt in prompts]
    assert [hit[0] for hit in hits] == [answer["output_ids"] for answer in alone]
    # All at once, and other prompts of the same lengths in the store by now.
    fresh = [prompt_of(tokens, seed=40 + tokens) for tokens in PROMPT_TOKENS]
    before = now_link(pair.decode)
    with ThreadPoolExecutor(8) as pool:
        parts = [hand_over(pair, pool, prompt) for prompt in fresh]
        answers = [second.result(300) for _, second in parts]
        assert all(len(first.result(300)["output_ids"]) == 1 for first, _ in parts)
    after = now_link(pair.decode)
    computed = after.tokens["computed"] - before.tokens["computed"]
    assert computed == sum((n - 1) % PAGE + 1 for n in PROMPT_TOKENS)
    assert after.tokens["arena"] - before.tokens["arena"] == sum(PROMPT_TOKENS) - computed
    assert after.counts["faults"] == 0
    check_names(pair, fresh[-1], after)
    # As if it had computed them itself, and found them on its device.
    empty_device(pair.decode)
    pair.store.kill()
    pair.store.start()
    for prompt, answer in zip(fresh, answers, strict=True):
        assert ask(pair.decode, prompt)["output_ids"] == answer["output_ids"]
        ids, logprobs = outcome(ask(pair.decode, prompt))
        handed_ids, handed_logprobs = outcome(answer)
        assert handed_ids == ids
        # Three prompts at once were computed in chunks of other sizes than one alone is.
        assert handed_logprobs == pytest.approx(logprobs, abs=LOGPROB_TOLERANCE)


def check_names(pair: Pair, prompt: list[int], link: LinkReport) -> None:
    """The names that `bana store keys` gives a prompt's pages are those that the store knows."""
    hashes = hash_pages({"token_ids": prompt, "page_tokens": link.page_tokens})
    (digest,) = link.digests
    keys = split_keys(page_keys(bytes.fromhex(digest), hashes))
    assert len(keys) == len(prompt) // PAGE
    known = [
        ask_store(pair.store.address, lambda n, _, key=key: AskPage(n, key), PageFacts, 30.0)
        for key in keys
    ]
    assert all(facts.is_known for facts in known[:-1])


def check_endings(pair: Pair) -> None:
    """The announcement is lost, the store dies, the prefill side dies: nobody notices."""
    prompts = [prompt_of(1300, seed=60 + number) for number in range(3)]
    alone = [ask(pair.decode, prompt)["output_ids"] for prompt in prompts]
    empty_device(pair.decode)
    pair.store.kill()
    pair.store.start()
    for instance in (pair.prefill, pair.decode):
        wait_link(instance, lambda link: link.state == "attached")
    with ThreadPoolExecutor(8) as pool:
        # Nobody hears of it: the prefill side is frozen before it could say anything.
        frozen = pair.prefill.scheduler_pids()
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        first, second = hand_over(pair, pool, prompts[0])
        assert second.result(300)["output_ids"] == alone[0]
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)
        assert len(first.result(300)["output_ids"]) == 1
        # The store dies in the middle.
        _, second = hand_over(pair, pool, prompts[1])
        wait_link(pair.decode, lambda link: link.held == 1)
        pair.store.kill()
        assert second.result(300)["output_ids"] == alone[1]
        pair.store.start()
        for instance in (pair.prefill, pair.decode):
            wait_link(instance, lambda link: link.state == "attached")
        # The prefill side dies in the middle.
        first, second = hand_over(pair, pool, prompts[2])
        wait_link(pair.decode, lambda link: link.held == 1)
        for pid in pair.prefill.scheduler_pids():
            os.kill(pid, signal.SIGKILL)
        assert second.result(300)["output_ids"] == alone[2]
        pair.prefill.wait_end()
    link = now_link(pair.decode)
    assert link.counts["faults"] == 0
    report = pair.store.report()
    assert (report.counts["deaths"], len(report.owners)) == (1, 1)
