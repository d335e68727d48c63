"""Served tokens do not depend on the CPU attention backend: bana_cpu against torch_native, fp32."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import msgspec
import pytest

from bana.slo.wire import EngineProof
from sglang_bana.config import EngineConfig

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

NEW_TOKENS = 24


class Answers(msgspec.Struct):
    """What one backend's instance answered, one by one and all at once, and what it ran."""

    one_by_one: list[list[int]]
    together: list[list[int]]
    proof: EngineProof


def prompts() -> list[list[int]]:
    """Short, of several chunks, and behind a cached prefix."""
    rng = Random(5)
    fresh = [[rng.randrange(3, 400) for _ in range(n)] for n in (1, 37, 300, 700)]
    return [*fresh, *(fresh[3][:512] + fresh[index] for index in (1, 2))]


def ask(start_instance, model: Path, backend: str) -> Answers:
    engine = EngineConfig(attention_backend=backend)
    with start_instance(model, "--chunked-prefill-size", "128", engine=engine) as instance:
        one_by_one = [instance.greedy_ids(prompt, NEW_TOKENS) for prompt in prompts()]
        with ThreadPoolExecutor(len(prompts())) as pool:
            together = list(pool.map(lambda p: instance.greedy_ids(p, NEW_TOKENS), prompts()))
        proof = instance.wait_report(lambda report: report.proof is not None).proof
        assert proof is not None
    return Answers(one_by_one, together, proof)


# `test_exactness` compares clusters that differ in this and in their scheduler.
@pytest.mark.full
def test_tokens_equal_those_of_torch_native(start_instance, llama_fixture: Path) -> None:
    theirs = ask(start_instance, llama_fixture, "torch_native")
    ours = ask(start_instance, llama_fixture, "bana_cpu")

    assert "TorchNativeAttnBackend" in theirs.proof.attention_backend
    assert "BanaCpuAttnBackend" in ours.proof.attention_backend
    assert ours.one_by_one == theirs.one_by_one
    assert ours.together == theirs.together
    assert len({tuple(ids) for ids in ours.one_by_one}) > 1
