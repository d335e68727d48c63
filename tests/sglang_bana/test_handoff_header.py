"""What a header says of a hand-off reaches the scheduler, and nothing else changes."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_bana.engine.handoff_header import take_part

# SGLang is imported in a process of its own: it changes the logging and the event loops of
# whatever imports it.
HOOKED = """
from sglang.srt.plugins.hook_registry import HookRegistry
from sglang_bana.engine.handoff_header import is_taking, register_parts

before = is_taking()
register_parts()
HookRegistry.apply_hooks()
print("TAKING", before, is_taking())
"""


def http(**headers: str) -> SimpleNamespace:
    return SimpleNamespace(
        headers={name.replace("_", "-"): value for name, value in headers.items()}
    )


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        ({}, {"bana_handoff": "decode"}),
        ({"custom_params": None}, {"bana_handoff": "decode"}),
        ({"custom_params": {"own": 1}}, {"own": 1, "bana_handoff": "decode"}),
    ],
)
def test_a_part_joins_what_is_there(sampling: dict[str, Any], expected: object) -> None:
    kept = sampling.get("custom_params")
    before = dict(kept) if kept else kept
    obj = SimpleNamespace(sampling_params=sampling)
    assert take_part(None, obj, http(x_bana_handoff="decode")) is None
    assert obj.sampling_params == {"custom_params": expected}
    # What the client's object holds may be shared with other requests.
    assert kept == before


@pytest.mark.parametrize("request_", [None, http(), http(x_bana_slo_class="batch")])
def test_without_a_part_nothing_changes(request_: Any) -> None:
    obj = SimpleNamespace(sampling_params={"temperature": 0})
    take_part(None, obj, request_)
    assert obj.sampling_params == {"temperature": 0}


def test_batches_and_requests_without_sampling_have_no_part() -> None:
    batch = SimpleNamespace(sampling_params=[{}, {}])
    take_part(None, batch, http(x_bana_handoff="prefill"))
    assert batch.sampling_params == [{}, {}]
    take_part(None, SimpleNamespace(), http(x_bana_handoff="prefill"))


def test_a_part_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="'both' is not a valid Handoff"):
        take_part(None, SimpleNamespace(sampling_params={}), http(x_bana_handoff="both"))


def test_sglang_runs_the_hook() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HOOKED], capture_output=True, text=True, timeout=280
    )
    assert "TAKING False True" in done.stdout, done.stderr[-2000:]
