from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from bana.eval.bench.client import SCALES, describe_client_settings, judge_seen
from bana.eval.bench.client_load import ClientPoint, PointSeen, build_point, summarise_point
from bana.eval.bench.harness import Scale
from bana.eval.bench.load import Streams
from bana.eval.bench.search import Verdict
from bana.eval.requests import Ending, Limits, LoadRun, Observed, Phase, Validity

POINT = ClientPoint(200.0, 2.0, Streams(30, 2.0, 60.0), prompt_tokens=8, seed=1)
GOOD = PointSeen(100, 0, 0.001, 0.004, 0.002, None)


def test_streams_are_opened_before_the_window_and_last_past_it() -> None:
    workload = build_point(POINT)
    streams = [r for r in workload.requests if r.phase is Phase.WARMUP]
    shorts = [r for r in workload.requests if r.phase is Phase.WINDOW]

    assert (len(streams), {r.output_tokens for r in shorts}) == (30, {1})
    assert 300 < len(shorts) < 500
    assert max(r.due_s for r in streams) < min(r.due_s for r in shorts)
    # The first stream to be opened is the first to be over.
    assert streams[0].output_tokens / 2.0 >= max(r.due_s for r in shorts)
    due_s = [r.due_s for r in workload.requests]
    assert due_s == sorted(due_s)
    assert [r.index for r in workload.requests] == list(range(len(due_s)))


def test_arrivals_follow_the_seed() -> None:
    other = msgspec.structs.replace(POINT, seed=2)
    assert build_point(POINT) == build_point(POINT) != build_point(other)


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({}, Verdict.HELD),
        ({"lateness_p99_s": 0.006}, Verdict.EXCEEDED),
        ({"lost": 1}, Verdict.EXCEEDED),
    ],
)
def test_a_rate_is_held_on_time_and_without_loss(
    change: dict[str, float], verdict: Verdict
) -> None:
    assert judge_seen(msgspec.structs.replace(GOOD, **change), 0.005) is verdict


def seen(phase: Phase, ending: Ending, tokens: int) -> Observed:
    return Observed(
        index=0,
        due_s=1.0,
        ending=ending,
        slo_class="default",
        limits=Limits(),
        phase=phase,
        prompt_tokens=1,
        asked_tokens=2,
        sent_s=1.5 if phase is Phase.WINDOW else 9.0,
        first_s=2.0,
        output_tokens=tokens,
        error="why",
    )


def test_lateness_is_that_of_the_short_requests_and_streams_can_be_lost() -> None:
    observed = (
        seen(Phase.WINDOW, Ending.FINISHED, 2),
        seen(Phase.WINDOW, Ending.CUT, 1),
        seen(Phase.WARMUP, Ending.FINISHED, 1),
    )

    found = summarise_point(LoadRun(observed, (), (), 1.0, 1.0, Validity(True)))

    assert (found.offered, found.lost, found.first_error) == (2, 2, "why")
    assert (found.lateness_p50_s, found.lateness_p99_s, found.ttft_p50_s) == (0.5, 0.5, 1.0)


@pytest.mark.parametrize("scale", [Scale.DEFAULT, Scale.FULL])
def test_what_claims_something_is_repeated_and_under_the_load_of_the_aim(scale: Scale) -> None:
    settings = SCALES[scale]

    assert min(settings.lag_runs, settings.search_runs) >= 5
    assert settings.search.trials >= 3
    assert (settings.lag_rate_rps, settings.streams.count) == (2_000.0, 1_000)
    assert settings.lateness_limit_ms == 5.0


def test_settings_name_the_load_and_where_it_runs() -> None:
    settings = describe_client_settings(Scale.DEFAULT)

    assert settings["streams"] == {"count": 1000, "chunks_per_s": 2.0, "opened_per_s": 400.0}
    assert "'client_shares_upstream_cores': False" in str(settings["placement"])


@pytest.mark.timeout(300)
def test_a_quick_run_gives_every_figure(tmp_path: Path) -> None:
    output = tmp_path / "client.json"
    argv = [sys.executable, "-m", "bana.cli.main", "eval", "bench", "client", "--quick"]

    done = subprocess.run(
        [*argv, "--json", str(output)], capture_output=True, text=True, timeout=240, check=False
    )

    assert done.returncode == 0, done.stderr
    figures = json.loads(output.read_bytes())["figures"]
    assert set(figures) >= {"client_rps", "client_lag_p99_ms", "client_lost"}
    assert figures["client_rps"]["aim"] == ">= 2000"
    assert all(figure["met"] is None for figure in figures.values())
    assert figures["client_lost"]["high"] == 0
    assert figures["client_rps"]["value"] > 0
