"""The command that is printed offers the same as bana does, or says what differs."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from bana.eval.export.command import Exported, export_requests
from bana.eval.live.settings import read_live_spec
from bana.slo.errors import ConfigError

SHORT: dict[str, object] = {
    "workload.arrivals.kind": "bench_serving",
    "workload.arrivals.rate_rps": 5.0,
    "workload.arrivals.duration_s": 4.0,
    "workload.arrivals.warmup_s": 0.0,
    "workload.prompts.input_tokens": {"kind": "constant", "tokens": 8},
    "seeds": [9],
}
PROMISE: dict[str, object] = {"limits.default.ttft_ms": 500.0, "limits.default.tpot_ms": 50.0}


def export(folder: Path, *, url: str | None = None, **changes: object) -> Exported:
    entries = {key.replace("__", "."): value for key, value in changes.items()}
    spec = read_live_spec(None, {**SHORT, **PROMISE, **entries})
    return export_requests(spec, folder / "requests.jsonl", url)


def flags(exported: Exported) -> dict[str, str]:
    """Each flag with what follows it up to the next."""
    program, *parts = exported.command.split(" --")
    assert program == "python -m sglang.bench_serving"
    return dict(part.partition(" ")[::2] for part in parts)


def test_a_file_is_offered_at_the_same_times_with_the_same_promise(tmp_path: Path) -> None:
    exported = export(tmp_path, url="http://h:1")
    lines = len((tmp_path / "requests.jsonl").read_text().splitlines())

    assert exported.note == ""
    assert exported.requests == lines > 10
    assert flags(exported) == {
        "backend": "sglang",
        "base-url": "http://h:1",
        "dataset-name": "openai",
        "dataset-path": str(tmp_path / "requests.jsonl"),
        "num-prompts": str(lines),
        "warmup-requests": "0",
        "request-rate": "5.0",
        "seed": "9",
        "goodput": "ttft:500 tpot:50",
    }


def test_other_arrivals_are_said_to_be_others(tmp_path: Path) -> None:
    exported = export(tmp_path, **{"workload.arrivals.kind": "constant"})
    assert flags(exported)["request-rate"] == "5"
    assert "seed" not in flags(exported)
    assert "--arrivals bench_serving" in exported.note


def test_sampling_is_that_of_the_client(tmp_path: Path) -> None:
    warm = {"client.temperature": 0.5, "workload.prompts.ignore_eos": False}
    native = flags(export(tmp_path, **warm))
    (tmp_path / "requests.jsonl").unlink()
    openai = flags(export(tmp_path, **warm, **{"client.endpoint": "completions"}))

    assert (native["temperature"], native["backend"]) == ("0.5", "sglang")
    assert shlex.split(openai["extra-request-body"]) == ['{"temperature": 0.5}']
    assert openai["backend"] == "sglang-oai"
    assert "disable-ignore-eos" in native


@pytest.mark.parametrize(
    "limits",
    [
        {"limits.default.ttft_ms": 500.0, "limits.batch.ttft_ms": 900.0},
        {"limits.default.ttft_x": 10.0},
        {"limits.default": {}},
    ],
)
def test_promises_that_goodput_cannot_name_are_left_out(
    tmp_path: Path, limits: dict[str, object]
) -> None:
    spec = read_live_spec(None, {**SHORT, **limits})
    exported = export_requests(spec, tmp_path / "requests.jsonl", None)
    assert "goodput" not in flags(exported)


@pytest.mark.parametrize(
    "several",
    [{"seeds": [1, 2]}, {"grid.rates_rps": [1.0]}, {"grid.search.start_rps": 1.0}],
)
def test_several_workloads_are_no_file(tmp_path: Path, several: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="holds one workload"):
        export(tmp_path, **several)
    assert list(tmp_path.iterdir()) == []
