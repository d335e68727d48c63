"""Which part of a request an engine has."""

from __future__ import annotations

from typing import Any

import pytest

from bana.slo.handoff import Handoff, read_handoff


@pytest.mark.parametrize(
    ("params", "part"),
    [
        ({"bana_handoff": "prefill"}, Handoff.PREFILL),
        ({"bana_handoff": "decode"}, Handoff.DECODE),
        ({"bana_handoff": ""}, Handoff.NONE),
        ({"bana_handoff": "both"}, Handoff.NONE),
        ({"bana_handoff": ["prefill"]}, Handoff.NONE),
        ({}, Handoff.NONE),
        (None, Handoff.NONE),
        ("prefill", Handoff.NONE),
    ],
    ids=str,
)
def test_only_words_of_the_front_door_count(params: Any, part: Handoff) -> None:
    assert read_handoff(params) is part
