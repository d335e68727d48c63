"""The share of reads: recent, not moved by replication, and nothing before there is evidence."""

from __future__ import annotations

import pytest

from bana.radix_global.writer.traffic import Traffic


def test_without_evidence_nothing_is_read() -> None:
    traffic = Traffic(prior_bytes=1_000)
    assert traffic.read_share(5.0) == 0
    traffic.note_read(10, 6.0)
    assert traffic.read_share(6.0) < 0.01


def test_the_share_is_of_bytes() -> None:
    traffic = Traffic(memory_s=1e9, prior_bytes=0 + 1)
    traffic.note_read(3_000_000, 1.0)
    traffic.note_new(1_000_000, 2.0)
    assert traffic.read_share(3.0) == pytest.approx(0.75, rel=1e-3)


def test_what_was_long_ago_is_forgotten() -> None:
    traffic = Traffic(memory_s=10.0, prior_bytes=1_000)
    traffic.note_read(1_000_000, 0.0)
    assert traffic.read_share(0.0) > 0.99
    traffic.note_new(100_000, 100.0)
    assert traffic.read_share(100.0) < 0.001
