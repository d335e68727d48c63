"""The sweep on engines that only say how long they took: order, resumption, figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bana.eval.bench.closed import ClosedResult
from bana.eval.bench.errors import BenchError
from bana.eval.bench.exchange import CountedExchange
from bana.eval.bench.harness import BenchRequest, Interruption, Scale, Session
from bana.eval.bench.kvstream.prompts import Prompt, draw_documents
from bana.eval.bench.kvstream.scene import Seen
from bana.eval.bench.kvstream.settings import KvStreamSettings
from bana.eval.bench.kvstream.steps import StepPlan
from bana.eval.bench.restore.engine_part import RULES, measure_rules, plan_rule
from bana.eval.bench.restore.settings import NO_STORE, SCALES
from bana.eval.bench.trials import Values, open_trials
from bana.slo.figures import Figure

SETTINGS = msgspec.structs.replace(SCALES[Scale.QUICK], covers=True)
STAND = SETTINGS.engine.stand
# Computing takes a second: who fetches waits as long as it takes, who plans the lesser of both.
WAITS = {"always": lambda share: share, "planned": lambda share: min(share, 1.0)}


class StubServer:
    """A rule that answers as late as its share says."""

    def __init__(self, step: StepPlan, share: float) -> None:
        self._wait_s = WAITS.get(step.name, lambda _: 1.0)(share)
        self.empties = 0

    def ask(self, prompts: Sequence[Prompt], concurrency: int) -> ClosedResult:
        assert concurrency == STAND.concurrency
        return ClosedResult([self._answer(prompt) for prompt in prompts], self._wait_s)

    def empty(self) -> None:
        self.empties += 1

    def count_events(self) -> Values:
        raise AssertionError("nobody counts here")

    def require_sound(self) -> None:
        assert self.empties == STAND.rounds

    def require_priced(self) -> None:
        self.is_priced = True

    def _answer(self, prompt: Prompt) -> CountedExchange:
        exchange = CountedExchange(0.0)
        exchange.first_event_s = self._wait_s
        meta = {"prompt_tokens": len(prompt), "cached_tokens": 0}
        event = {"output_ids": prompt[: STAND.output_tokens], "meta_info": meta}
        exchange.last_event = b"data: " + msgspec.json.encode(event)
        return exchange


class StubTiers:
    """Notes which rule is started at which speed."""

    def __init__(self) -> None:
        self.documents = draw_documents(STAND, 0)
        self.opened: list[tuple[str, float]] = []

    def fill(self) -> Values:
        return {"prefill_s": 1.0, "page_bytes": 4096.0}

    @contextmanager
    def open(self, step: StepPlan, seen: Seen, settings: KvStreamSettings) -> Iterator[StubServer]:
        assert seen == Seen(1.0, 4096)
        self.opened.append((step.name, settings.fetch_share))
        yield StubServer(step, settings.fetch_share)


def measure(folder: Path, tiers: StubTiers) -> tuple[dict[str, Figure], Any]:
    with open_trials(folder / "trials.jsonl", "key") as log:
        session = Session(BenchRequest(folder / "o.json"), log, lambda _: None, Interruption())
        return dict(measure_rules(session, SETTINGS, tiers)), session.notes["engine"]


def test_rules_take_turns_and_an_interrupted_run_starts_nothing_twice(tmp_path: Path) -> None:
    tiers, again = StubTiers(), StubTiers()
    figures, notes = measure(tmp_path, tiers)
    slow, fast = SETTINGS.engine.fetch_shares
    assert tiers.opened == [(r, slow) for r in RULES] + [(r, fast) for r in RULES[::-1]]
    assert notes["bytes_per_s"] == {
        "2 at a time,fetch 2x": pytest.approx(STAND.document_pages * 4096 / slow),
        "2 at a time,fetch 0.5x": pytest.approx(STAND.document_pages * 4096 / fast),
    }
    row = "engine,2 at a time,fetch"
    assert figures[f"ttft_vs_planned[always,{row} 2x]"].value == pytest.approx(2.0)
    assert figures[f"restore_vs_best_fixed[{row} 2x]"].value == pytest.approx(1.0)
    assert figures[f"ttft_vs_no_store[{row} 0.5x]"].value == pytest.approx(0.5)
    assert measure(tmp_path, again) == (figures, notes)
    assert again.opened == []


def test_a_sweep_in_which_no_rule_loses_proves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(WAITS, "always", lambda _: 0.1)
    with pytest.raises(BenchError, match="always takes at most"):
        measure(tmp_path, StubTiers())


def test_a_rule_is_one_tier_under_it_and_no_store_none() -> None:
    assert (plan_rule("timeout").restore, plan_rule("timeout").tiers) == ("timeout", 1)
    assert plan_rule(NO_STORE).tiers == 0
    assert len({plan_rule(rule).name for rule in RULES}) == len(RULES)
