import msgspec

from bana.eval.report.records import StoredRun
from bana.eval.report.timeline import pick_cause, trace_timeline
from bana.eval.requests import Ending
from bana.eval.summary import Dimension


def test_every_request_is_offered_once_and_every_answer_finished_once(run_at_8: StoredRun) -> None:
    timeline = trace_timeline(run_at_8)
    observed = run_at_8.record.run.observed
    assert sum(timeline.offered) == len(observed)
    assert sum(timeline.finished) == sum(o.ending is Ending.FINISHED for o in observed)


def test_the_window_is_where_the_run_says(run_at_8: StoredRun) -> None:
    timeline = trace_timeline(run_at_8)
    assert timeline.window.start_s == 10.0
    assert timeline.window.end_s == 130.0
    assert timeline.bins.start_s == 0.0
    assert timeline.bins.end_s >= max(o.end_s or 0.0 for o in run_at_8.record.run.observed)


def test_a_request_that_missed_is_counted_once(run_at_8: StoredRun) -> None:
    run = run_at_8.record.run
    window = tuple(o for o in run.observed if o.phase == "window")
    only = msgspec.structs.replace(run, observed=window)
    stored = msgspec.structs.replace(
        run_at_8, record=msgspec.structs.replace(run_at_8.record, run=only)
    )
    overall = run_at_8.summary.overall
    missed = trace_timeline(stored).missed
    assert sum(map(sum, missed.values())) == overall.offered - overall.met
    assert sum(missed[Dimension.NO_ANSWER]) == overall.missed[Dimension.NO_ANSWER]


def test_the_first_cause_counts() -> None:
    assert pick_cause(frozenset()) is None
    assert pick_cause({Dimension.TPOT, Dimension.TTFT}) is Dimension.TTFT
    assert pick_cause(set(Dimension)) is Dimension.NO_ANSWER


def test_probes_without_an_answer_are_kept_apart(run_at_8: StoredRun) -> None:
    probes = trace_timeline(run_at_8).probes
    assert probes is not None
    assert probes.failed_s == (61.0,)
    assert 61.5 not in probes.answered.middles_s


def test_samples_are_totalled_over_instances(run_at_8: StoredRun) -> None:
    timeline = trace_timeline(run_at_8)
    assert timeline.running is not None
    largest = max(sum(s.running.values()) for s in run_at_8.record.run.samples)
    assert max(timeline.running.largest) == largest


def test_a_run_without_anything_has_empty_series(run_at_8: StoredRun) -> None:
    run = msgspec.structs.replace(
        run_at_8.record.run, observed=(), probes=(), samples=(), duration_s=0.0
    )
    timeline = trace_timeline(
        msgspec.structs.replace(run_at_8, record=msgspec.structs.replace(run_at_8.record, run=run))
    )
    assert sum(timeline.offered) == 0
    assert timeline.probes is None
    assert timeline.running is None
    assert timeline.waiting is None
