"""A client whose pages are too large: the operator sees it wherever one looks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bana.cli.store import status
from sglang_bana.store import asking
from sglang_bana.store.asking import StoreAddress

Start = Callable[..., Any]


def test_larger_pages_than_the_slots_are_told_to_the_operator(
    start_daemon: Start,
    start_client: Start,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    daemon = start_daemon(slot_bytes=4096)
    client = start_client(daemon, "large")
    report = daemon.await_report(lambda report: report.refused)
    (refused,) = report.refused
    assert (refused.name, refused.pid) == ("large", client.process.pid)
    assert "pages of 16384 bytes, allowed: <= 4096" in refused.reason
    assert "set store.slot_bytes to the largest page" in refused.reason
    assert report.owners == ()
    assert report.counts["refused_clients"] >= 1
    assert daemon.log.read_text().count("'large'") == 1

    def find(given: str | None, environ: Any) -> StoreAddress:
        return daemon.address

    monkeypatch.setattr(asking, "find_store", find)
    status()
    assert f"(pid {refused.pid}): refused: {refused.reason}" in capsys.readouterr().out
