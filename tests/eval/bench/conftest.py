"""Fleets of stub servers, so that benchmarks of promises run without SGLang."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from bana.eval.bench.slo.sides import SloSide
from bana.eval.client.target import Target
from bana.slo.decisions import GovernorRecord, LogHeader, encode_line
from bana.slo.governor import StepKind, StepPlan, StepView
from bana.slo.steps import StepModel

INFO = {
    "device": "cpu",
    "chunked_prefill_size": 2048,
    "page_size": 1,
    "max_total_num_tokens": 16_384,
    "enable_mixed_chunk": False,
    "disable_radix_cache": False,
    "disable_overlap_schedule": False,
    "internal_states": [{"effective_max_running_requests_per_dp": 48, "other": "words"}],
    "api_key": "unread",
}


class StubServed:
    """A side whose requests all go to one stub; each point leaves a decision in its log."""

    def __init__(self, side: SloSide, url: str, log: Path) -> None:
        self.side = side
        self.target = Target(url)
        self.decision_log = log
        self.model = StepModel(0.1, 1e-6, 0.0, 0.1, 0.0, 0.0)
        log.write_bytes(encode_line(LogHeader(seed=0)) + b"\n")

    def read_info(self) -> bytes:
        return msgspec.json.encode(INFO)

    def flush(self) -> None:
        view = StepView(self.model, 0, 0, None, 10, 0, 0, 64, 1)
        record = GovernorRecord(0, view, StepPlan(StepKind.PREFILL, 10, "no_decodes"))
        with self.decision_log.open("ab") as file:
            file.write(encode_line(record) + b"\n")

    def require_undisturbed(self) -> None:
        pass


class StubFleet:
    """Notes what is started, and how many are up at once."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url = url
        self._folder = folder
        self._up: dict[SloSide, StubServed] = {}
        self.started: list[SloSide] = []
        self.most_up = 0

    def is_up(self, side: SloSide) -> bool:
        return side in self._up

    def reach(self, side: SloSide) -> StubServed:
        if side not in self._up:
            log = self._folder / f"decisions-{len(self.started)}.jsonl"
            self.started.append(side)
            self._up[side] = StubServed(side, self._url, log)
            self.most_up = max(self.most_up, len(self._up))
        return self._up[side]

    def keep_only(self, sides: Sequence[SloSide]) -> None:
        self._up = {side: served for side, served in self._up.items() if side in sides}


@pytest.fixture(scope="session")
def make_fleet(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], StubFleet]:
    """A function: the URL of a stub in, a fleet out whose servers are all that stub."""
    return lambda url: StubFleet(url, tmp_path_factory.mktemp("fleet"))
