"""The comparison of verified reads with preadv runs, and compares what it says."""

from __future__ import annotations

import pytest

from bana.eval.bench.store.reads import ReadSettings, judge_reads, open_reads, take_speeds


@pytest.mark.parametrize("threads", [1, 2])
def test_both_sides_read_every_page_in_every_round(threads: int) -> None:
    settings = ReadSettings(total_bytes=2**20, rounds=2, buffer_bytes=2**18)
    with open_reads(settings, 65_536) as sides:
        assert sides.pages == 16
        speeds = take_speeds(settings, threads, sides)
    assert set(speeds) == {f"{side}/{n}" for side in ("verified", "plain") for n in range(2)}
    assert min(speeds.values()) > 0


def test_the_share_is_taken_round_by_round_and_judged_by_its_low_end() -> None:
    speeds = {"verified/0": 8.0, "plain/0": 10.0, "verified/1": 9.0, "plain/1": 10.0}
    figures = judge_reads(speeds, seed=0)
    assert figures["share_of_preadv"].value == pytest.approx(0.85)
    assert figures["share_of_preadv"].aim == ">= 0.8"
    assert figures["share_of_preadv"].met is True
    assert figures["verified_bytes_per_s"].value == 8.5
    assert figures["preadv_bytes_per_s"].value == 10.0
