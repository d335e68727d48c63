"""bana and SGLang's own bench_serving say the same of one file of requests.

A stub answers each request at scripted times, so what both should say is known. The scripted
values lie much further apart than the tolerances: whoever took another rank, divided by another
count, kept one-token answers in the TPOT or lost failures from the denominator would be outside.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from bana.eval.client.plan import Endpoint
from bana.eval.distributions import describe

TIMEOUT_S = 280
LINES, RATE_RPS, SPAN_S, SEED = 140, 40.0, 2.5, 7
TTFT_LIMIT_S, TPOT_LIMIT_S = 0.9, 0.45
# A busy machine may delay anything by so much; no scripted value is as near to its limit.
TTFT_TOLERANCE_S, TPOT_TOLERANCE_S = 0.15, 0.07
POISON = "refuse me"
NO_URL = "http://127.0.0.1:30000"
BANA = (sys.executable, "-m", "bana.cli.main", "eval", "live")
ENDPOINTS = [
    Endpoint.GENERATE,
    pytest.param(Endpoint.COMPLETIONS, marks=pytest.mark.full),
    pytest.param(Endpoint.CHAT, marks=pytest.mark.full),
]
Told = dict[str, dict[str, float]]


class Script(msgspec.Struct, frozen=True):
    """When the stub sends the tokens of one answer; without any it refuses."""

    gaps_s: tuple[float, ...]

    @property
    def tpot_s(self) -> float | None:
        return sum(self.gaps_s[1:]) / (len(self.gaps_s) - 1) if len(self.gaps_s) > 1 else None

    @property
    def is_met(self) -> bool:
        return bool(self.gaps_s) and self.gaps_s[0] < TTFT_LIMIT_S and not self.is_slow

    @property
    def is_slow(self) -> bool:
        return (self.tpot_s or 0.0) > TPOT_LIMIT_S


def write_script(place: int) -> Script:
    """70 % 0.3 s, 15 % 0.6 s, 10 % 1.3 s, 5 % 2 s; then no, one or two gaps, three sizes."""
    if place % 15 == 14:
        return Script(())
    rank, turn = place * 37 % 100, place * 53 % 100
    first_s = 0.3 if rank < 70 else 0.6 if rank < 85 else 1.3 if rank < 95 else 2.0
    gap_s = 0.15 if turn < 40 else 0.3 if turn < 75 else 0.7
    return Script((first_s, *[gap_s] * (0, 1, 2, 1)[place % 4]))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_both_say_what_was_scripted(
    endpoint: Endpoint, stub_process: Any, llama_fixture: Path, tmp_path: Path
) -> None:
    write_source(tmp_path / "source.jsonl", endpoint)
    words = ["--endpoint", endpoint, "--model", str(llama_fixture), "--ttft-ms", "900"]
    words += ["--tpot-ms", "450", "--set", "client.lateness_limit_ms=60000"]
    command = export(tmp_path, words)
    command += ["--tokenizer", str(llama_fixture), "--model", str(llama_fixture)]
    command += ["--disable-tqdm", "--output-file", "there.jsonl", "--output-details"]
    with stub_process(fault="flat_error", poison=POISON) as url:
        argv = [*BANA, url, "--trace", "requests.jsonl", *words, "--set", "client.probe_rps=0"]
        [here] = json.loads(call([*argv, "--json"], tmp_path).stdout)["runs"].values()
        call([url if word == NO_URL else word for word in command], tmp_path)
    there = json.loads((tmp_path / "there.jsonl").read_bytes())

    scripts = [write_script(place) for place in range(here["overall"]["offered"])]
    assert 80 < len(scripts) == len(there["ttfts"])
    check_attainment(scripts, here["overall"], there)
    check_percentiles(expect(scripts), read_here(here["overall"]["latencies"]))
    check_percentiles(expect(scripts), read_there(there))
    check_ranks(there)
    assert there["total_output_tokens"] == sum(len(s.gaps_s) for s in scripts)


def check_attainment(scripts: Sequence[Script], here: Any, there: Any) -> None:
    """Equal to the last request, refused ones among the missed."""
    met, answered = sum(s.is_met for s in scripts), [s for s in scripts if s.gaps_s]
    assert 0.2 < met / len(scripts) < 0.8
    assert here["met"] == met
    assert there["slo_attainment"] == pytest.approx(met / len(scripts), abs=1e-12)
    late = sum(s.gaps_s[0] > TTFT_LIMIT_S for s in answered)
    slow = sum(s.is_slow for s in answered)
    refused = len(scripts) - len(answered)
    assert here["missed"] == {"ttft": late, "tpot": slow, "no_answer": refused}
    assert there["slo_attainment_by_metric"] == {
        "ttft": pytest.approx(1 - (late + refused) / len(scripts)),
        "tpot": pytest.approx(1 - (slow + refused) / len(scripts)),
    }


def check_percentiles(expected: Told, told: Told) -> None:
    for name, percentiles in expected.items():
        tolerance_s = TPOT_TOLERANCE_S if name == "tpot" else TTFT_TOLERANCE_S
        assert told[name] == pytest.approx(percentiles, abs=tolerance_s), name
    # Or else the tolerances could hide that they are others.
    for name in ("ttft", "e2e"):
        values = expected[name]
        assert values["p90"] - values["p50"] > 4 * TTFT_TOLERANCE_S
        assert values["p99"] - values["p90"] > 4 * TTFT_TOLERANCE_S
    assert expected["tpot"]["p90"] - expected["tpot"]["p50"] > 4 * TPOT_TOLERANCE_S


def check_ranks(there: Any) -> None:
    """bana's percentiles of what bench_serving saw are those that it states itself."""
    ttfts_s = (
        ttft for ttft, failed in zip(there["ttfts"], there["errors"], strict=True) if not failed
    )
    ours = describe(ttfts_s)
    assert ours is not None
    stated_ms = [there[f"{name}_ttft_ms"] for name in ("mean", "median", "p90", "p95", "p99")]
    ours_s = [ours.mean, ours.p50, ours.p90, ours.p95, ours.p99]
    assert [1e3 * value for value in ours_s] == pytest.approx(stated_ms, rel=1e-9)


def expect(scripts: Sequence[Script]) -> Told:
    answered = [s for s in scripts if s.gaps_s]
    values = {
        "ttft": [s.gaps_s[0] for s in answered],
        "tpot": [s.tpot_s for s in answered if s.tpot_s is not None],
        "e2e": [sum(s.gaps_s) for s in answered],
    }
    return {
        name: {f"p{p}": float(np.percentile(known, p)) for p in (50, 90, 99)}
        for name, known in values.items()
    }


def read_here(latencies: Any) -> Told:
    names = {"ttft": "ttft_from_send_s", "tpot": "tpot_s", "e2e": "e2e_from_send_s"}
    return {
        short: {p: latencies[name][p] for p in ("p50", "p90", "p99")}
        for short, name in names.items()
    }


def read_there(there: Any) -> Told:
    names = {"ttft": "ttft_ms", "tpot": "tpot_ms", "e2e": "e2e_latency_ms"}
    ranks = {"p50": "median", "p90": "p90", "p99": "p99"}
    return {
        short: {p: there[f"{rank}_{name}"] / 1e3 for p, rank in ranks.items()}
        for short, name in names.items()
    }


def write_source(path: Path, endpoint: Endpoint) -> None:
    """Requests that tell the stub when to send each token of the answer."""
    own = {} if endpoint is Endpoint.CHAT else {"prompt": [5, 6, 7]}
    lines = []
    for place in range(LINES):
        gaps_s = write_script(place).gaps_s
        scripted = {"stub_gaps_s": gaps_s} if gaps_s else {"note": POISON}
        said = [{"role": "user", "content": f"question {place}"}]
        lines.append({"messages": said, "max_tokens": max(1, len(gaps_s)), **own, **scripted})
    path.write_text("\n".join(json.dumps(line) for line in lines))


def export(folder: Path, words: Sequence[str]) -> list[str]:
    """Write one file for both, at the times that bench_serving draws; what to call it with."""
    argv = ["--trace", "source.jsonl", "--arrivals", "bench_serving", "--seed", str(SEED)]
    argv += ["--rate", str(RATE_RPS), "--duration", str(SPAN_S), *words]
    argv += ["--set", "workload.arrivals.warmup_s=0", "--export-requests", "requests.jsonl"]
    done = call([*BANA, *argv], folder)
    [line] = [line for line in done.stderr.splitlines() if "bench_serving" in line]
    python, *others = shlex.split(line)
    assert python == "python"
    return [sys.executable, "-W", "ignore", *others]


def call(argv: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr[-2000:]
    return done
