"""Greedy tokens through `bana launch` equal those of a stock SGLang server, in fp32."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from sglang_bana.cluster.models import resolve_model

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

VOCABULARY = 400
NEW_TOKENS = 24


def prompts(seed: int) -> list[list[int]]:
    """Short, long (several chunks) and shared-prefix prompts."""
    rng = random.Random(seed)
    fresh = [[rng.randrange(3, VOCABULARY) for _ in range(n)] for n in (5, 40, 170, 330)]
    shared = fresh[2][:96]
    return fresh + [shared + [rng.randrange(3, VOCABULARY) for _ in range(n)] for n in (7, 50)]


def tokens_of(start_cluster, model: str, side: str, sglang_args: tuple[str, ...]) -> list:
    """What one side answers, one by one and then all at once."""
    args = ("--dtype", "float32", "--chunked-prefill-size", "128", "--page-size", "16")
    flags = ("--model", model)
    if side == "stock":
        flags += ("--set", "engine.scheduler=stock")
        flags += ("--set", "engine.attention_backend=torch_native")
    with start_cluster(*flags, sglang_args=(*args, *sglang_args)) as cluster:
        proof = cluster.status()["front_door"]["instances"][0]["proof"]
        assert proof["scheduler_class"].endswith("BanaScheduler") == (side == "bana")
        assert proof["attention_backend"].startswith("bana_cpu") == (side == "bana")
        ask = partial(cluster.greedy_ids, new_tokens=NEW_TOKENS)
        one_by_one = [ask(prompt) for prompt in prompts(seed=7)]
        with ThreadPoolExecutor(len(one_by_one)) as pool:
            return one_by_one + list(pool.map(ask, prompts(seed=8)))


def assert_equal_to_stock(start_cluster, model: str, sglang_args: tuple[str, ...] = ()) -> None:
    def run(side: str) -> list:
        return tokens_of(start_cluster, model, side, sglang_args)

    # Starting a server takes most of the time, so both start at once.
    with ThreadPoolExecutor(2) as pool:
        stock, ours = pool.map(run, ("stock", "bana"))
    assert ours == stock
    assert len({tuple(ids) for ids in stock}) > 1


def test_embedded_model(start_cluster) -> None:
    assert_equal_to_stock(start_cluster, resolve_model("smollm2"))


def test_qwen3_fixture_with_two_ranks(start_cluster, qwen3_fixture: Path) -> None:
    assert_equal_to_stock(start_cluster, str(qwen3_fixture), ("--tp-size", "2"))


@pytest.mark.full
@pytest.mark.parametrize("kind", ["llama_fixture", "qwen3_fixture"])
@pytest.mark.parametrize("ranks", ["1", "2"])
@pytest.mark.parametrize(
    "flag", ["--disable-overlap-schedule", "--enable-mixed-chunk", "--disable-radix-cache"]
)
def test_every_combination(
    start_cluster, request: pytest.FixtureRequest, kind: str, ranks: str, flag: str
) -> None:
    model = str(request.getfixturevalue(kind))
    assert_equal_to_stock(start_cluster, model, ("--tp-size", ranks, flag))
