"""A file, flags and --set give one specification; what is wrong is one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from bana.eval.client.limits import ClassLimits
from bana.eval.client.plan import Endpoint
from bana.eval.live.settings import read_live_spec
from bana.eval.live.spec import PAPER_LIMITS
from bana.eval.workload.spec import ArrivalKind, PromptForm
from bana.slo.errors import ConfigError

FILE = """
seeds = [3, 4]
[workload.arrivals]
rate_rps = 2.0
duration_s = 30
[limits.chat]
ttft_ms = 500
[limits.batch]
ttft_ms = 9000
[client]
endpoint = "completions"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "m.toml"
    path.write_text(FILE)
    return path


def test_without_anything_there_is_a_rate_a_length_and_the_papers_promise() -> None:
    spec = read_live_spec(None, {})
    arrivals = spec.workload.arrivals
    assert (arrivals.kind, arrivals.rate_rps) == (ArrivalKind.POISSON, 1.0)
    assert arrivals.duration_s is not None
    assert dict(spec.class_limits) == {"default": PAPER_LIMITS}
    assert spec.needs_isolated


def test_flags_win_over_the_file_and_set_over_flags(file: Path) -> None:
    spec = read_live_spec(
        file, {"workload.arrivals.rate_rps": 5.0, "client.model": "m"}, ["client.model=other"]
    )
    assert spec.workload.arrivals.rate_rps == 5.0
    assert spec.workload.arrivals.duration_s == 30
    assert spec.client.model == "other"
    assert spec.client.endpoint is Endpoint.COMPLETIONS
    assert spec.seeds == (3, 4)


def test_classes_with_limits_and_no_shares_share_equally(file: Path) -> None:
    spec = read_live_spec(file, {})
    assert spec.workload.classes == {"chat": 0.5, "batch": 0.5}
    assert spec.class_limits["chat"] == ClassLimits(ttft_ms=500)
    assert not spec.needs_isolated


def test_a_trace_is_replayed_in_its_own_time_unless_a_rate_is_given() -> None:
    spec = read_live_spec(None, {"workload.trace.path": "t.csv"})
    assert spec.workload.arrivals.kind is ArrivalKind.TRACE
    assert spec.workload.arrivals.rate_rps is None
    rated = read_live_spec(
        None, {"workload.trace.path": "t.csv", "workload.arrivals.rate_rps": 3.0}
    )
    assert rated.workload.arrivals.kind is ArrivalKind.TRACE
    assert rated.workload.arrivals.rate_rps == 3.0


def test_the_chat_endpoint_asks_in_messages() -> None:
    spec = read_live_spec(None, {"client.endpoint": "chat"})
    assert spec.workload.prompts.form is PromptForm.CHAT


@pytest.mark.parametrize(
    ("entries", "sets", "part"),
    [
        ({"workload.arrivals.rat_rps": 1.0}, (), "did you mean 'workload.arrivals.rate_rps'"),
        ({"workload.arrivals.rate_rps": -1.0}, (), r"workload.arrivals.rate_rps=-1.0"),
        ({"limits.chat.ttft_ms": 0}, (), "ttft_ms=0"),
        ({"limits.chat.ttft": 1}, (), "unknown measurement key 'limits.chat.ttft'"),
        ({}, ("seeds",), "has no '='"),
        ({}, ("seeds=[1, 1]",), "each may be given once"),
        ({"seeds": 3}, ("seeds.x=1",), "holds no further keys"),
        ({}, (".x=1",), "allowed are dotted names"),
        ({"grid.rates_rps": [1.0]}, ("grid.search.start_rps=1",), "exclude each other"),
        ({}, ("workload.arrivals.kind=gamma",), "needs it; 1 is Poisson"),
        ({"seeds": []}, (), "seeds="),
    ],
)
def test_what_cannot_be_used_is_refused(
    entries: dict[str, object], sets: tuple[str, ...], part: str
) -> None:
    with pytest.raises(ConfigError, match=part) as refused:
        read_live_spec(None, entries, sets)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("content", [b"seeds = [", b"\xff\xfe"])
def test_a_file_that_is_no_toml_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"bad\.toml.* is no TOML"):
        read_live_spec(path, {})
    with pytest.raises(ConfigError, match="cannot read"):
        read_live_spec(tmp_path / "none.toml", {})
