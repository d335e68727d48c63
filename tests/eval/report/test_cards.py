import msgspec

from bana.eval.report.cards import BAD, WARN, find_best, list_banners, list_cards
from bana.eval.report.records import ReportInput, StoredRun
from bana.eval.requests import Validity

replace = msgspec.structs.replace


def spoil(stored: StoredRun, *reasons: str) -> StoredRun:
    return replace(stored, summary=replace(stored.summary, validity=Validity(False, reasons)))


def test_a_run_shows_what_was_asked_for(run_at_8: StoredRun) -> None:
    cards = {card.label: card for card in list_cards(ReportInput((run_at_8,)))}
    assert set(cards) == {
        "Goodput", "Attainment", "TTFT", "TPOT", "Finished", "Lateness of the client"
    }  # fmt: skip
    assert [f.name for f in cards["TTFT"].figures] == ["p50", "p99"]
    assert "offered" in cards["Goodput"].detail
    overall = run_at_8.summary.overall
    assert f"{overall.met:,} of {overall.offered:,}" in cards["Attainment"].detail


def test_quantities_that_no_request_has_are_dashes(run_at_8: StoredRun) -> None:
    summary = run_at_8.summary
    latencies = replace(summary.overall.latencies, tpot_s=None)
    bare = replace(summary, overall=replace(summary.overall, latencies=latencies), lateness_s=None)
    cards = {c.label: c for c in list_cards(ReportInput((replace(run_at_8, summary=bare),)))}
    assert cards["TPOT"].figures[0].value == "–"
    assert cards["Lateness of the client"].figures[0].value == "–"


def test_a_grid_shows_its_max_rate_first(grid: ReportInput) -> None:
    first, second = list_cards(grid)[:2]
    assert (first.label, first.figures[0].value) == ("Max rate", "5.70/s")
    assert second.figures[0].value == "5"


def test_a_valid_run_has_no_banner(run_at_8: StoredRun) -> None:
    assert list_banners(ReportInput((run_at_8,))) == ()


def test_reasons_are_told_and_bounded(run_at_8: StoredRun) -> None:
    stored = spoil(run_at_8, *(f"reason {i}" for i in range(30)))
    (banner,) = list_banners(ReportInput((stored,)))
    assert banner.tone is BAD
    assert banner.reasons[0] == "reason 0"
    assert banner.reasons[-1] == "and 22 more reasons"


def test_an_interruption_is_told(run_at_8: StoredRun) -> None:
    summary = replace(run_at_8.summary, is_interrupted=True)
    (banner,) = list_banners(ReportInput((replace(run_at_8, summary=summary),)))
    assert banner.tone is WARN


def test_a_grid_counts_its_invalid_runs(grid: ReportInput) -> None:
    runs = (spoil(grid.runs[0], "late"), spoil(grid.runs[1], "late"), *grid.runs[2:])
    (banner,) = list_banners(replace(grid, runs=runs))
    assert banner.title.endswith("2 of 5 runs")
    assert banner.reasons == ("late",)


def test_the_best_run_is_valid_and_has_the_most_goodput(grid: ReportInput) -> None:
    best = find_best(grid)
    assert best is not None
    goodputs = [s.summary.overall.goodput_rps.value for s in grid.runs]
    assert best.summary.overall.goodput_rps.value == max(goodputs)
    spoilt = ReportInput(tuple(spoil(s, "late") for s in grid.runs))
    assert find_best(spoilt) is None
