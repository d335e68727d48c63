"""Latency budgets in a real engine: the same tokens as stock, while prompts share and yield."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, get_args

import pytest

from bana.slo.decisions import Decision, LogHeader, RestoreRecord, decode_line
from sglang_bana.config import EngineConfig, SchedulerKind, SchedulingConfig

from .asks import NEW_TOKENS, Ask, body_of, is_empty, prompt_of, scheduling_of

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

CHUNK = ("--chunked-prefill-size", "128")
NO_OVERLAP = ("--disable-overlap-schedule",)
MIXED = ("--enable-mixed-chunk",)
RETRACT = {"SGLANG_TEST_RETRACT": "1", "SGLANG_TEST_RETRACT_INTERVAL": "7"}
TWO_RANKS = ("--tp-size", "2")
TWO_RANKS_ENVIRONMENT = {"SGLANG_CPU_OMP_THREADS_BIND": "0|1"}
REPORTING = EngineConfig(report_interval_s=0.02)


LONG = Ask(2_400, 600.0, seed=1)
# Some fit beside a chunk, others do not; one shares the long prompt's beginning.
TIGHT = tuple(
    Ask(tokens, 20.0 + tokens / 100, seed=index)
    for index, tokens in enumerate((40, 300, 16, 520, 90, 700, 33, 250), start=2)
)


def answer_all(instance: Any) -> dict[Ask, list[int]]:
    """The long prompt first; the others once it is being computed, all at once."""
    with ThreadPoolExecutor(len(TIGHT) + 1) as pool:
        begun_s = time.monotonic()
        first = pool.submit(instance.request, "/generate", body_of(LONG))
        instance.wait_report(lambda report: report.prefilling_tokens > 0, begun_s)
        rest = {ask: pool.submit(instance.request, "/generate", body_of(ask)) for ask in TIGHT}
        return {ask: ids_of(answer) for ask, answer in {LONG: first, **rest}.items()}


def ids_of(answer: Future[Any]) -> list[int]:
    return list(answer.result(300)["output_ids"])


@pytest.fixture(scope="module")
def alone(start_instance: Any, llama_fixture: Path) -> dict[Ask, list[int]]:
    """Every answer of SGLang's own scheduler, one request at a time."""
    engine = EngineConfig(scheduler=SchedulerKind.STOCK)
    with start_instance(llama_fixture, *CHUNK, engine=engine) as instance:
        return {ask: instance.greedy_ids(prompt_of(ask), NEW_TOKENS) for ask in (LONG, *TIGHT)}


@pytest.mark.parametrize(
    ("order", "arguments", "environment", "expected"),
    [
        pytest.param(
            *("budget", (), {}, ("yields", "resumes", "shares", "deferrals")),
            marks=pytest.mark.full,
        ),
        pytest.param(
            *("cascade", NO_OVERLAP, {}, ("yields", "resumes", "shares")), marks=pytest.mark.full
        ),
        ("edf", MIXED, RETRACT, ("yields", "resumes", "retractions")),
        ("budget", TWO_RANKS, TWO_RANKS_ENVIRONMENT, ("yields", "resumes", "shares", "deferrals")),
    ],
    ids=["overlap", "no_overlap", "mixed_retracting", "two_ranks"],
)
def test_the_tokens_are_those_of_stock(
    start_instance: Any,
    llama_fixture: Path,
    alone: dict[Ask, list[int]],
    order: str,
    arguments: tuple[str, ...],
    environment: dict[str, str],
    expected: tuple[str, ...],
) -> None:
    scheduling = SchedulingConfig(
        order=order, governor="tpot", decision_log_bytes=2**26, report_outcome=True
    )
    options = {"engine": REPORTING, "scheduling": scheduling, "environment": environment}
    with start_instance(llama_fixture, *CHUNK, *arguments, **options) as instance:
        before = scheduling_of(instance, is_empty).classes["standard"].answered
        assert answer_all(instance) == alone
        seen = scheduling_of(instance, is_empty)
        assert seen.order == order
        assert {name: count for name in expected if not (count := seen.counts[name])} == {}
        assert (seen.counts["faults"], seen.started) == (0, 0)
        assert seen.classes["standard"].answered - before == len(TIGHT) + 1
        told = instance.request("/generate", body_of(TIGHT[0]))["meta_info"]["bana"]
        assert [(entry["slo_class"], entry["missed"]) for entry in told] == [("standard", [])]
        assert set(told[0]["met"]) == {"ttft", "tpot"}
        abort_in_the_middle(instance)
        answered = instance.greedy_ids(prompt_of(LONG), NEW_TOKENS)
        assert answered == alone[LONG]
        log = Path(instance.spec.run_dir) / "decisions-i0.jsonl"
        header, *decisions = map(decode_line, log.read_bytes().splitlines())
    assert isinstance(header, LogHeader)
    # There is no store to restore anything from.
    assert {type(decision) for decision in decisions} == {*get_args(Decision)} - {RestoreRecord}


def abort_in_the_middle(instance: Any) -> None:
    """Everything that waits, half computed or not, is given up; nothing of it stays."""
    begun_s = time.monotonic()
    with ThreadPoolExecutor(len(TIGHT) + 1) as pool:
        asked = [pool.submit(instance.request, "/generate", body_of(ask)) for ask in (LONG, *TIGHT)]
        instance.wait_report(lambda report: report.waiting_requests > 0, begun_s)
        instance.request("/abort_request", {"rid": "", "abort_all": True})
        for answer in asked:
            answer.exception(120)
    assert scheduling_of(instance, is_empty).started == 0
