from __future__ import annotations

from typing import Any

from bana.eval.client.run import run_load
from bana.eval.client.watch import NoWatch
from bana.eval.requests import Ending
from bana.eval.stub import Fault


def test_probes_are_sent_beside_the_load_with_prompts_of_their_own(
    stub: Any, make_plan: Any, make_workload: Any
) -> None:
    with stub() as server:
        plan = make_plan(server.url, probe_rps=10.0)
        run = run_load(make_workload(10, 0.1), plan, NoWatch())
        asked = [r.body for r in server.seen("/generate")]

    probes = [b for b in asked if b["sampling_params"]["max_new_tokens"] == 1]
    assert 3 <= len(run.probes) <= 12
    assert len(asked) == 10 + len(probes)
    assert len({tuple(body["input_ids"]) for body in probes}) == len(probes)
    # Only ids that the workload has, since any other may be none of the model's.
    valid = {token for r in asked if r not in probes for token in r["input_ids"]}
    assert {token for body in probes for token in body["input_ids"]} <= valid
    for place, probe in enumerate(run.probes[:3]):
        assert abs(probe.due_s - (place + 0.5) / 10) < 1e-9
        assert probe.ending is Ending.FINISHED
        assert probe.sent_s is not None
        assert probe.first_s is not None
        assert probe.first_s >= probe.sent_s >= probe.due_s


def test_probes_that_fail_say_why(stub: Any, make_plan: Any, make_workload: Any) -> None:
    with stub(fault=Fault.UNAVAILABLE) as server:
        plan = make_plan(server.url, probe_rps=10.0)
        run = run_load(make_workload(5, 0.1), plan, NoWatch())

    assert run.probes[0].ending is Ending.REJECTED
    assert "no instance" in (run.probes[0].error or "")


def test_probes_that_are_out_at_the_end_are_unfinished(
    stub: Any, make_plan: Any, make_workload: Any
) -> None:
    with stub(first_delay_s=0.2, poison='max_new_tokens":1,', fault=Fault.HANG) as server:
        plan = make_plan(server.url, probe_rps=10.0)
        run = run_load(make_workload(5, 0.1), plan, NoWatch())

    assert {probe.ending for probe in run.probes} == {Ending.UNFINISHED}
    assert "not over" in (run.probes[0].error or "")
    assert {seen.ending for seen in run.observed} == {Ending.FINISHED}
