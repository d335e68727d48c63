"""The comparison of verified reads with preadv runs, and compares what it says."""

from __future__ import annotations

from bana.eval.bench.store_reads import Settings, measure_reads


def test_every_combination_has_its_share_and_both_speeds() -> None:
    settings = Settings(
        total_bytes=2**20,
        page_bytes=(4_096, 65_536),
        threads=(1, 2),
        rounds=2,
        buffer_bytes=2**18,
    )
    said: list[str] = []
    figures = measure_reads(settings, said.append)
    assert len(said) == 4
    assert set(figures) == {
        f"{name}_{page_bytes}b_{threads}t"
        for name in ("share_of_preadv", "verified_bytes_per_s", "preadv_bytes_per_s")
        for page_bytes in (4_096, 65_536)
        for threads in (1, 2)
    }
    assert all(0 < figure.low <= figure.value <= figure.high for figure in figures.values())
    assert all("share_of_preadv" in line for line in said)
