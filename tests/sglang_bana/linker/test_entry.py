"""What an instance's log says of its store."""

from __future__ import annotations

import logging

import pytest

from bana.radix_global.link import LinkState
from sglang_bana.engine.linker.entry import tell_state


def test_a_store_that_refuses_is_a_warning_with_its_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    tell_state(LinkState.REFUSED, "pages of 9 bytes; set store.slot_bytes")
    tell_state(LinkState.ATTACHED, "")
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "bana: no store (refused): pages of 9 bytes; set store.slot_bytes"),
        ("INFO", "bana: the store is there"),
    ]
