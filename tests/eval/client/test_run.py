"""A run as a whole: its schedule, its times, what it sends, and when it claims nothing."""

from __future__ import annotations

import statistics
import time
from typing import Any

import pytest

from bana.eval.client.plan import Endpoint
from bana.eval.client.run import run_load
from bana.eval.client.watch import NoWatch, Tally
from bana.eval.requests import Ending, Limits, LoadRun, Observed, Phase, Prompt
from bana.eval.stub import Fault
from bana.slo.errors import ConfigError

WATCH = NoWatch()
# Beyond what a busy machine may add to a scripted time.
SLACK_S = 8.0


def only(run: LoadRun) -> Observed:
    (seen,) = run.observed
    return seen


def test_ttft_and_tpot_are_those_that_the_server_scripts(
    stub: Any, make_plan: Any, make_workload: Any, prompt_of: Any, endpoint: Endpoint
) -> None:
    workload = make_workload(8, 0.02, prompt=prompt_of(endpoint), output_tokens=9)
    with stub(first_delay_s=0.2, chunk_interval_s=0.05, has_role_event=True) as server:
        run = run_load(workload, make_plan(server.url, endpoint=endpoint), WATCH)

    assert [seen.ending for seen in run.observed] == [Ending.FINISHED] * 8
    for seen in run.observed:
        assert seen.sent_s is not None
        assert seen.first_s is not None
        assert seen.last_s is not None
        assert seen.sent_s >= seen.due_s
        # What the server adds may only be late, as the clock of both is the same.
        assert 0.2 <= seen.first_s - seen.sent_s < 0.2 + SLACK_S
        assert 0.6 <= seen.last_s - seen.sent_s < 0.6 + SLACK_S
        assert (seen.output_tokens, seen.asked_tokens) == (9, 9)
        assert (len(seen.event_times_s), sum(seen.event_tokens)) == (9, 9)
        assert list(seen.event_times_s) == sorted(seen.event_times_s)
        assert (seen.status, seen.error, seen.cached_tokens) == (200, None, 0)
    tpots = [(s.last_s - s.first_s) / 8 for s in run.observed if s.last_s and s.first_s]
    assert 0.04 < statistics.median(tpots) < 0.05 + SLACK_S / 8
    assert run.validity.is_valid
    assert not run.is_interrupted
    assert run.duration_s >= 0.14 + 0.6


def test_a_header_may_script_the_times(stub: Any, make_plan: Any, make_workload: Any) -> None:
    with stub() as server:
        plan = make_plan(server.url, headers={"x-stub-gaps-s": "0.1,0.3,0.0"})
        seen = only(run_load(make_workload(1), plan, WATCH))

    assert seen.output_tokens == 3
    first, second, third = (at_s - (seen.sent_s or 0.0) for at_s in seen.event_times_s)
    assert 0.1 <= first < 0.1 + SLACK_S
    assert second >= 0.4
    assert third >= second


def test_a_stalled_server_cannot_delay_the_schedule_or_hide_its_stall(
    stub: Any, make_plan: Any, make_workload: Any
) -> None:
    """Coordinated omission: requests due during the stall are sent then, and count from then."""
    workload = make_workload(40, 0.05)

    class Staller(NoWatch):
        """Stalls the server for a second, a second after the first request."""

        def show(self, tally: Tally) -> None:
            if tally.sent >= 10 and not stalled:
                stalled.append(tally.sent)
                server.hosted.stall(1.0)

    stalled: list[int] = []
    with stub() as server:
        run = run_load(workload, make_plan(server.url), Staller())

    assert stalled
    assert len(run.observed) == 40
    assert {seen.ending for seen in run.observed} == {Ending.FINISHED}
    # The stall lasted a second, so some 20 requests were due within it. Those due in its first
    # half waited for half a second and more.
    waited = [s.first_s - s.due_s for s in run.observed if s.first_s is not None]
    assert sum(wait_s > 0.4 for wait_s in waited) >= 5
    slow = [s for s in run.observed if s.first_s is not None and s.first_s - s.due_s > 0.4]
    # Sent on schedule all the same: had they waited for answers, they would not all have been
    # sent before the first of them was answered.
    assert max(s.sent_s or 0.0 for s in slow[:5]) <= min(s.first_s or 0.0 for s in slow[:5])


def test_more_than_may_be_out_is_not_sent_and_makes_the_run_invalid(
    stub: Any, make_plan: Any, make_workload: Any
) -> None:
    with stub(first_delay_s=1.0) as server:
        plan = make_plan(server.url, max_outstanding=3)
        run = run_load(make_workload(5, 0.0), plan, WATCH)

    unsent = [seen for seen in run.observed if seen.sent_s is None]
    assert len(unsent) == 2
    assert {seen.ending for seen in unsent} == {Ending.UNFINISHED}
    assert "max_outstanding" in (unsent[0].error or "")
    assert not run.validity.is_valid
    assert "2 of 5 requests were not sent" in run.validity.reasons[0]


def test_a_late_client_makes_the_run_invalid(stub: Any, make_plan: Any, make_workload: Any) -> None:
    class Blocker(NoWatch):
        """Stands for anything that keeps the client from its work."""

        def show(self, tally: Tally) -> None:
            time.sleep(0.3)

    with stub() as server:
        plan = make_plan(server.url, lateness_limit_s=0.2)
        run = run_load(make_workload(120, 0.01), plan, Blocker())

    assert not run.validity.is_valid
    assert "late" in run.validity.reasons[0]
    assert max((s.sent_s or 0) - s.due_s for s in run.observed) > 0.2


def test_each_request_has_an_id_of_its_own_and_says_what_it_was_promised(
    stub: Any, make_plan: Any, make_workload: Any
) -> None:
    limits = Limits(ttft_s=0.5, tpot_s=0.05)
    with stub() as server:
        plan = make_plan(server.url, headers={"x-team": "blue"})
        run = run_load(make_workload(3, limits=limits, slo_class="gold"), plan, WATCH)
        asked = [{k.lower(): v for k, v in r.headers.items()} for r in server.seen("/generate")]

    assert {headers["x-request-id"] for headers in asked} == {s.request_id for s in run.observed}
    assert len({seen.request_id for seen in run.observed}) == 3
    for headers in asked:
        assert headers["x-llm-d-slo-ttft-ms"] == "500"
        assert headers["x-bana-slo-class"] == "gold"
        assert headers["x-team"] == "blue"
    assert {(s.slo_class, s.limits) for s in run.observed} == {("gold", limits)}


def test_what_was_offered_is_repeated_with_what_was_seen(
    stub: Any, make_plan: Any, make_workload: Any
) -> None:
    fields = {"phase": Phase.COOLDOWN, "family": "f", "session": "s"}
    with stub() as server:
        run = run_load(make_workload(2, **fields), make_plan(server.url), WATCH)

    for index, seen in enumerate(run.observed):
        assert (seen.index, seen.due_s) == (index, pytest.approx(index * 0.01))
        assert (seen.phase, seen.family, seen.session) == (Phase.COOLDOWN, "f", "s")
        assert (seen.prompt_tokens, seen.asked_tokens) == (3, 4)


def test_a_workload_that_the_endpoint_cannot_take_is_refused_before_anything_is_sent(
    stub: Any, make_plan: Any, make_workload: Any
) -> None:
    with stub() as server:
        with pytest.raises(ConfigError, match="cannot send a prompt of token ids"):
            run_load(make_workload(2), make_plan(server.url, endpoint=Endpoint.CHAT), WATCH)
        assert server.server.log.requests == []


def test_progress_is_told(stub: Any, make_plan: Any, make_workload: Any) -> None:
    told: list[Tally] = []
    labels: list[tuple[str, int]] = []

    class Recorder(NoWatch):
        def begin(self, label: str, total: int) -> None:
            labels.append((label, total))

        def show(self, tally: Tally) -> None:
            told.append(tally)

    with stub(fault=Fault.REFUSE, fault_limit=1) as server:
        run_load(make_workload(20, 0.1), make_plan(server.url), Recorder())

    assert labels == [("load", 20)]
    assert told[0].left_s > told[-1].left_s >= 0
    assert told[-1].sent >= told[-1].done >= 1
    assert told[-1].failed == 1


def test_long_prompts_are_sent_whole(stub: Any, make_plan: Any, make_workload: Any) -> None:
    prompt = Prompt(token_ids=list(range(30_000)))
    with stub() as server:
        run = run_load(make_workload(3, prompt=prompt), make_plan(server.url), WATCH)
        bodies = [r.body["input_ids"] for r in server.seen("/generate")]

    assert [seen.ending for seen in run.observed] == [Ending.FINISHED] * 3
    assert bodies == [prompt.token_ids] * 3


def test_an_empty_workload_is_an_invalid_run(stub: Any, make_plan: Any, make_workload: Any) -> None:
    with stub() as server:
        run = run_load(make_workload(0), make_plan(server.url), WATCH)

    assert (run.observed, run.validity.is_valid) == ((), False)
