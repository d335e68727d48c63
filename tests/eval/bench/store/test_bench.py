"""The store's benchmark: what it divides by what, when it is invalid, and a whole smoke."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from bana.eval.bench.errors import BenchError
from bana.eval.bench.harness import Scale
from bana.eval.bench.store.bench import (
    POLICIES,
    SCALES,
    describe_store_settings,
    ideal_rate,
    judge_slowing,
    judge_sums,
    require_possible,
)
from bana.eval.bench.store.stand import (
    ReadRun,
    StandSettings,
    StoreStand,
    TierSpeed,
    open_stand,
)

TINY = StandSettings(total_bytes=2**19, page_bytes=2**14)
FAST = TierSpeed(1e9)
# 100 bytes a second from each tier, and 25 from the second after 1 s of 8.
SLOW = msgspec.structs.replace(
    SCALES[Scale.DEFAULT],
    stand=StandSettings(total_bytes=800, page_bytes=100),
    tier_bytes_per_s=100.0,
)
TRIAL = {"solo_1": 100.0, "solo_2": 100.0, "solo_2_slow": 25.0}


@pytest.fixture(scope="module")
def stand() -> Iterator[StoreStand]:
    """A stand with 32 pages a tier."""
    with open_stand(TINY) as opened:
        yield opened


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_reads_everything_run_after_run(stand: StoreStand, policy: str) -> None:
    for speeds in ({1: FAST, 2: FAST}, {2: FAST}):
        assert stand.read(ReadRun(speeds, TINY.pages, policy)) > 0


def test_a_tier_is_as_fast_as_its_throttle_before_and_after_it_slows(stand: StoreStand) -> None:
    slow = stand.read(ReadRun({1: TierSpeed(4e6)}, TINY.pages))
    assert slow <= 4e6 * 1.001
    slowing = stand.read(ReadRun({1: TierSpeed(1e9, 0.0, 4e6)}, TINY.pages))
    assert slowing <= 4e6 * 1.001


def test_the_same_pages_can_be_read_without_store_and_reader(stand: StoreStand) -> None:
    assert stand.read_plain() > 0
    assert stand.read(ReadRun({1: TierSpeed(float("inf"))}, TINY.pages)) > 0


def test_a_page_that_cannot_be_read_is_no_measurement(stand: StoreStand) -> None:
    with pytest.raises(BenchError, match="page 32: failed, failures"):
        stand.read(ReadRun({1: FAST}, TINY.pages + 1))


def test_the_possible_rate_counts_the_time_before_and_after_the_slowing() -> None:
    assert SLOW.slows_at_s == 1.0
    # 200 bytes in the first second, the other 600 at 125 a second.
    assert ideal_rate(SLOW, TRIAL) == pytest.approx(800 / (1 + 600 / 125))
    # Faster than expected, all is read before anything slows.
    fast = {name: 10 * rate for name, rate in TRIAL.items()}
    assert ideal_rate(SLOW, fast) == pytest.approx(2_000)


def test_policies_are_judged_by_what_was_possible_and_the_default_by_its_aim() -> None:
    rate = ideal_rate(SLOW, TRIAL)
    given = {"completion": rate, "fixed_split": rate / 2, "sequential": rate / 4}
    figures = judge_slowing(SLOW, [{**TRIAL, **given}], seed=0)
    name = "share_of_tier_sum_when_one_slows[{}]".format
    assert [figures[name(policy)].value for policy in POLICIES] == pytest.approx([1, 0.5, 0.25])
    assert [figures[name(policy)].aim for policy in POLICIES] == [">= 0.95", None, None]


def test_the_sum_is_that_of_the_same_repetition() -> None:
    trials = [
        {"solo_1": 75.0, "solo_2": 25.0, "both": 98.0},
        {"solo_1": 150.0, "solo_2": 50.0, "both": 192.0},
    ]
    (share,) = judge_sums({"3_to_1": trials}, seed=0).values()
    assert (share.low, share.value, share.high) == pytest.approx((0.96, 0.97, 0.98))
    assert share.met is True
    require_possible({"share": share}, 1.02)
    with pytest.raises(BenchError, match=r"share is 0\.970 .*allowed: <= 0\.9"):
        require_possible({"share": share}, 0.9)


@pytest.mark.parametrize("scale", [Scale.DEFAULT, Scale.FULL])
def test_what_claims_something_is_repeated_and_checked(scale: Scale) -> None:
    settings = SCALES[scale]
    assert settings.pairs >= 5
    assert settings.reads.rounds >= 5
    assert settings.passes.pairs >= 5
    assert settings.passes.requests == 1_000
    assert settings.overlap.rounds >= 5
    assert settings.index.pages == 10_000_000
    assert settings.index.windows >= 5
    assert settings.most_share == 1.02
    # A run ends within a page of each tier: few enough of them not to show.
    assert settings.stand.pages >= 200
    assert msgspec.json.encode(describe_store_settings(scale))


@pytest.mark.timeout(600)
def test_a_quick_run_gives_every_figure(tmp_path: Path) -> None:
    output = tmp_path / "store.json"
    argv = [sys.executable, "-m", "bana.cli.main", "eval", "bench", "store", "--quick"]

    done = subprocess.run(
        [*argv, "--json", str(output)], capture_output=True, text=True, timeout=570, check=False
    )

    assert done.returncode == 0, done.stderr
    figures = json.loads(output.read_bytes())["figures"]
    expected = {"two_tiers_vs_one", "share_of_tier_sum[equal]", "share_of_tier_sum[3_to_1]"}
    expected |= {f"share_of_tier_sum_when_one_slows[{policy}]" for policy in POLICIES}
    expected |= {"reader_share_of_preadv"}
    expected |= {f"share_of_preadv[65536b_{threads}t]" for threads in (1, 2)}
    expected |= {"index_ops_per_s_100k", "index_bytes_per_page_100k"}
    # What is a difference of times may have any sign in a smoke.
    differences = {"pass_overhead_ms_1000_queued[100 held]", "one_core_layer_overlap[368640b]"}
    assert set(figures) >= expected | differences
    assert all(figure["met"] is None for figure in figures.values())
    assert all(figures[name]["value"] > 0 for name in expected)
