"""The whole benchmark over servers that only say how long they took: order, resumption, figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bana.eval.bench.closed import ClosedResult
from bana.eval.bench.errors import BenchError
from bana.eval.bench.exchange import CountedExchange
from bana.eval.bench.harness import BenchRequest, Interruption, Session
from bana.eval.bench.kvstream.bench import join_rounds, measure_steps, split_rounds
from bana.eval.bench.kvstream.prompts import Prompt, draw_documents
from bana.eval.bench.kvstream.scene import Seen
from bana.eval.bench.kvstream.settings import QUICK, KvStreamSettings
from bana.eval.bench.kvstream.steps import STEPS, StepPlan
from bana.eval.bench.trials import Values, open_trials
from bana.slo.figures import Figure

SETTINGS = msgspec.structs.replace(QUICK, starts=3, rounds=2)
NAMES = [step.name for step in STEPS]
# How long a round takes in each step, and what its first tier gives of a document.
WALLS_S = dict(zip(NAMES, (40.0, 20.0, 16.0, 16.0, 10.0, 8.0), strict=True))
SHARES = dict(zip(NAMES, (0.0, 1.0, 1.0, 1.0, 0.5, 0.625), strict=True))


class StubServer:
    """A step that answers every prompt with its last tokens, and counts what is done with it."""

    def __init__(self, step: StepPlan, documents: Sequence[Prompt]) -> None:
        self.step = step
        self.documents = {tuple(document) for document in documents}
        self.empties = 0
        self.is_wrong = False

    def ask(self, prompts: Sequence[Prompt], concurrency: int) -> ClosedResult:
        assert concurrency == SETTINGS.concurrency
        # Each round of a start takes longer than the one before it, in every step.
        wall_s = WALLS_S[self.step.name] * (1 + self.empties)
        return ClosedResult([self._answer(prompt, wall_s / 4) for prompt in prompts], wall_s)

    def empty(self) -> None:
        self.empties += 1

    def count_events(self) -> Values:
        counts = {f"tier_{n}_written": 32.0 * self.empties for n in range(1, 1 + self.step.tiers)}
        counts |= {name.replace("written", "crowded_out"): 0.0 for name in counts}
        return {**counts, "late_holds": 1.0 * self.empties} if counts else {}

    def require_sound(self) -> None:
        assert self.empties == SETTINGS.rounds

    def _answer(self, prompt: Prompt, ttft_s: float) -> CountedExchange:
        exchange = CountedExchange(0.0)
        exchange.first_event_s = ttft_s
        document = prompt[: SETTINGS.document_tokens]
        is_held = self.step.tiers and tuple(document) in self.documents
        cached = len(document) if is_held else 0
        first = int(SHARES[self.step.name] * cached)
        details = {"device": 0, "host": 0, "tier_1": first, "tier_2": cached - first}
        meta = {"prompt_tokens": len(prompt), "cached_tokens": cached}
        ids = prompt[-SETTINGS.output_tokens :]
        if self.step.name == "batched":
            ids = ids[::-1]
        event = {"output_ids": ids, "meta_info": meta | {"cached_tokens_details": details}}
        exchange.last_event = b"data: " + msgspec.json.encode(event)
        return exchange


class StubTiers:
    """Notes which step is started when; one that `breaks` gives nothing."""

    def __init__(self, breaks: str = "") -> None:
        self.documents = draw_documents(SETTINGS, 0)
        self.opened: list[str] = []
        self.fills = 0
        self._breaks = breaks

    def fill(self) -> Values:
        self.fills += 1
        return {"prefill_s": 4.0, "page_bytes": 4096.0}

    @contextmanager
    def open(self, step: StepPlan, seen: Seen, settings: KvStreamSettings) -> Iterator[StubServer]:
        assert (seen, settings) == (Seen(4.0, 4096), SETTINGS)
        self.opened.append(step.name)
        yield StubServer(step, [] if step.name == self._breaks else self.documents)


class Measurement:
    """One run, with what it noted."""

    def __init__(self, folder: Path, tiers: StubTiers) -> None:
        self.tiers = tiers
        with open_trials(folder / "trials.jsonl", "key") as log:
            request = BenchRequest(folder / "out.json")
            session = Session(request, log, lambda _: None, Interruption())
            self.figures: dict[str, Figure] = dict(measure_steps(session, SETTINGS, tiers))
        self.notes: Any = session.notes["measured"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Measurement:
    return Measurement(tmp_path_factory.mktemp("kvstream"), StubTiers())


def test_steps_are_started_in_an_order_that_is_turned_round(run: Measurement) -> None:
    assert run.tiers.opened == NAMES + NAMES[::-1] + NAMES
    assert run.tiers.fills == 1


def test_every_step_is_held_against_the_plain_store(run: Measurement) -> None:
    for name in (name for name in NAMES if name != "sequential"):
        expected = WALLS_S["sequential"] / WALLS_S[name]
        for figure in ("kvstream_throughput", "kvstream_ttft"):
            judged = run.figures[f"{figure}[{name}]"]
            spread = (judged.low, judged.value, judged.high)
            assert spread == pytest.approx((expected,) * 3)
    assert "kvstream_throughput[sequential]" not in run.figures


def test_and_against_the_step_before_it(run: Measurement) -> None:
    for before, name in pairwise(NAMES):
        figure = run.figures[f"kvstream_throughput[{name} over {before}]"]
        assert figure.value == pytest.approx(WALLS_S[before] / WALLS_S[name])
        assert f"kvstream_ttft[{name} over {before}]" in run.figures


def test_levels_are_medians_of_all_rounds(run: Measurement) -> None:
    # Half of the rounds take twice as long.
    expected = SETTINGS.requests * (1 / 8 + 1 / 16) / 2
    assert run.figures["kvstream_requests_per_s[completion]"].value == pytest.approx(expected)
    assert run.figures["kvstream_ttft_mean_s[completion]"].value == pytest.approx(3.0)


def test_answers_that_differ_are_counted(run: Measurement) -> None:
    assert run.figures["kvstream_differing_answers[completion]"].high == 0
    assert run.figures["kvstream_differing_answers[batched]"].low == SETTINGS.requests
    assert run.notes["steps"]["batched"]["differing_answers"] == [SETTINGS.requests] * 6


def test_the_report_says_what_each_tier_gave_and_took(run: Measurement) -> None:
    told = run.notes["steps"]["second_tier"]
    pages = SETTINGS.documents * SETTINGS.document_pages
    assert told["pages_from"]["tier_1"] == told["pages_from"]["tier_2"] == [pages // 2] * 6
    assert told["pages_from"]["device"] == told["pages_from"]["arena"] == [0] * 6
    assert told["pages_written"] == {"tier_1": [32] * 6, "tier_2": [32] * 6}
    assert told["pages_crowded_out"] == {"tier_1": [0] * 6, "tier_2": [0] * 6}
    assert told["events"] == {"late_holds": [1] * 6}
    assert run.notes["steps"]["no_store"]["pages_written"] == {}
    assert [tier["latency_s"] > 0 for tier in run.notes["tiers"]] == [True, True]


def test_a_step_that_restores_nothing_ends_the_run_and_costs_what_came_before_nothing(
    tmp_path: Path,
) -> None:
    with pytest.raises(BenchError, match="deferred: its tiers gave"):
        Measurement(tmp_path, StubTiers(breaks="deferred"))
    resumed = Measurement(tmp_path, StubTiers())
    assert resumed.tiers.fills == 0
    assert resumed.tiers.opened == NAMES[3:] + NAMES[::-1] + NAMES


def test_rounds_survive_the_trial_log() -> None:
    rounds = [{"a": 1.0, "b/c": 2.0}, {"a": 3.0}]
    assert split_rounds(join_rounds(rounds)) == rounds
