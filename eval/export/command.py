"""The command with which SGLang's bench_serving offers what a file of requests holds."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import msgspec

from bana.eval.client.limits import ClassLimits
from bana.eval.client.plan import Endpoint
from bana.eval.export.requests import write_requests
from bana.eval.live.measure import Point, build_point
from bana.eval.live.spec import ClientSpec, LiveSpec
from bana.eval.requests import Workload
from bana.eval.workload.spec import ArrivalKind, ArrivalSpec
from bana.slo.errors import ConfigError

_BACKENDS = {
    Endpoint.GENERATE: "sglang",
    Endpoint.COMPLETIONS: "sglang-oai",
    Endpoint.CHAT: "sglang-oai-chat",
}
_GOODPUT_NAMES = {"ttft_ms": "ttft", "tpot_ms": "tpot", "e2e_ms": "e2el"}
NO_URL = "http://127.0.0.1:30000"


class Exported(msgspec.Struct, frozen=True):
    """What was written, and how it is offered. `note` says what differs, "" where nothing does."""

    requests: int
    command: str
    note: str


def export_requests(spec: LiveSpec, path: Path, url: str | None) -> Exported:
    """Write what `spec` offers to `path`; ConfigError where that is not one workload."""
    if len(spec.seeds) > 1 or spec.grid.rates_rps or spec.grid.search is not None:
        raise ConfigError(
            f"a file holds one workload: {len(spec.seeds)} seeds or a grid of rates are several; "
            "give one --seed and --rate"
        )
    workload = build_point(spec, Point("export", spec.seeds[0]))
    write_requests(workload, spec.client.endpoint, path)
    words = [
        *("python", "-m", "sglang.bench_serving"),
        *("--backend", _BACKENDS[spec.client.endpoint], "--base-url", url or NO_URL),
        *("--dataset-name", "openai", "--dataset-path", str(path)),
        # Its first request would otherwise be sent ahead, and be cached.
        *("--num-prompts", str(len(workload.requests)), "--warmup-requests", "0"),
        *_list_rate(spec.workload.arrivals, workload),
        *_list_sampling(spec),
        *_list_promises(spec),
    ]
    return Exported(len(workload.requests), shlex.join(words), _compose_note(spec))


def _list_rate(arrivals: ArrivalSpec, workload: Workload) -> list[str]:
    if arrivals.kind is ArrivalKind.BENCH_SERVING:
        return ["--request-rate", f"{arrivals.rate_rps!r}", "--seed", str(workload.seed)]
    rate_rps = len(workload.requests) / workload.window_s
    return ["--request-rate", f"{rate_rps:.6g}"]


def _list_sampling(spec: LiveSpec) -> Iterator[str]:
    if not spec.workload.prompts.ignore_eos:
        yield "--disable-ignore-eos"
    if spec.client.temperature:
        yield from _set_temperature(spec.client)


def _set_temperature(client: ClientSpec) -> list[str]:
    # Only its native requests heed the flag.
    if client.endpoint is Endpoint.GENERATE:
        return ["--temperature", f"{client.temperature!r}"]
    return ["--extra-request-body", f'{{"temperature": {client.temperature!r}}}']


def _list_promises(spec: LiveSpec) -> list[str]:
    """`--goodput` knows one promise for all, in milliseconds."""
    promises = set(spec.class_limits.values())
    if len(promises) != 1 or (promise := promises.pop()).is_relative:
        return []
    given = [f"{name}:{ms:g}" for name, ms in _name_limits(promise)]
    return ["--goodput", *given] if given else []


def _name_limits(promise: ClassLimits) -> Iterator[tuple[str, float]]:
    for key, name in _GOODPUT_NAMES.items():
        ms = getattr(promise, key)
        if ms is not None:
            yield name, ms


def _compose_note(spec: LiveSpec) -> str:
    if spec.workload.arrivals.kind is ArrivalKind.BENCH_SERVING:
        return ""
    return (
        "it takes the rate, not the times: with --arrivals bench_serving both send at the same ones"
    )
