import re
from html.parser import HTMLParser

import msgspec
import pytest

from bana.eval.goodput import summarise
from bana.eval.report.page import MAX_DETAILED_RUNS, render_page
from bana.eval.report.records import Origin, ReportInput, StoredRun
from bana.eval.requests import Ending, Limits, Validity
from bana.eval.runs import RunRecord
from bana.eval.summary import Comparison, MaxRate, Spread, Verdict
from bana.slo.errors import ConfigError

replace = msgspec.structs.replace

LIMIT_BYTES = 500_000
HOSTILE = (
    "</title></style><script>alert('x')</script><img src=http://evil.example/x onerror=y>{{7*7}}\""
)


class Reader(HTMLParser):
    """What a browser would see: elements with their attributes, and text."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def count(self, tag: str) -> int:
        return sum(found == tag for found, _ in self.elements)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    return reader


def order(text: str, *words: str) -> list[int]:
    return [text.index(word) for word in words]


@pytest.fixture(scope="module")
def single(run_at_8: StoredRun) -> str:
    return render_page(ReportInput((run_at_8,)))


def test_the_page_reads_in_order(single: str, run_at_8: StoredRun) -> None:
    assert run_at_8.summary.sentence in read(single).text
    places = order(
        single, "<h1>", 'class="cards"', 'id="attainment"', 'id="latency"', 'id="timeline"',
        'id="fairness"', 'id="failures"', 'id="settings"', 'id="definitions"',
    )  # fmt: skip
    assert places == sorted(places)


def test_every_plot_says_what_it_shows(single: str) -> None:
    images = [a for tag, a in read(single).elements if tag == "svg" and "aria-hidden" not in a]
    assert len(images) == 2 + 4 + 4 + 2
    assert all(a["role"] == "img" and a["aria-label"] for a in images)


def test_the_numbers_behind_the_plots_are_there_too(single: str, run_at_8: StoredRun) -> None:
    text = read(single).text
    for group in (*run_at_8.summary.classes, *run_at_8.summary.quartiles):
        assert group.name in text
    assert "the stream ended without [DONE]" in text
    assert "Jain index" in text


def test_limits_are_marked_where_a_class_has_one(single: str) -> None:
    for limit in ("limit 500 ms", "limit 4 s", "limit 50 ms", "limit 30 s"):
        assert limit in single


def test_nothing_is_fetched_and_nothing_runs(single: str) -> None:
    elements = read(single).elements
    assert not {"script", "iframe", "object", "embed", "form", "base"} & {t for t, _ in elements}
    links = [v for _, a in elements for n, v in a.items() if n in ("href", "src", "srcset")]
    assert all(v is not None and v.startswith(("#", "data:")) for v in links)
    assert not [n for _, a in elements for n in a if n.startswith("on")]
    assert "@import" not in single
    assert "url(" not in single
    policies = [
        a["content"] for t, a in elements if a.get("http-equiv") == "Content-Security-Policy"
    ]
    assert len(policies) == 1
    assert {rule.strip() for rule in (policies[0] or "").split(";")} == {
        "default-src 'none'",
        "style-src 'unsafe-inline'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
    }


def spoil_everything(stored: StoredRun) -> StoredRun:
    run = stored.record.run
    observed = tuple(
        replace(o, slo_class=HOSTILE if o.slo_class == "chat" else "batch", error=HOSTILE,
                code=HOSTILE, ending=Ending.FAILED if o.index % 7 == 0 else o.ending)
        for o in run.observed
    )  # fmt: skip
    samples = tuple(replace(s, running={HOSTILE: 1.0}, waiting={HOSTILE: 2.0}) for s in run.samples)
    validity = Validity(False, (HOSTILE,))
    run = replace(run, observed=observed, samples=samples, validity=validity)
    facts = {HOSTILE: HOSTILE, "nested": {HOSTILE: [HOSTILE]}}
    about = replace(stored.record.about, target=f"http://h/{HOSTILE}", workload=facts)
    summary = replace(summarise(run, about), sentence=HOSTILE)
    origin = Origin(label=HOSTILE, side=HOSTILE, settings={HOSTILE: HOSTILE})
    return StoredRun(RunRecord(about, run), summary, origin)


def test_whatever_is_said_stays_text(run_at_8: StoredRun, single: str) -> None:
    page = render_page(ReportInput((spoil_everything(run_at_8),)))
    reader = read(page)
    assert reader.count("script") == 0
    assert reader.count("img") == 0
    assert {t for t, _ in reader.elements} <= {t for t, _ in read(single).elements} | {"ul", "li"}
    assert not [n for _, a in reader.elements for n in a if n.startswith("on")]
    assert "{{7*7}}" in reader.text
    assert "alert('x')" in reader.text


def test_hostile_names_stay_text_in_a_grid_and_a_comparison(grid: ReportInput) -> None:
    runs = tuple(spoil_everything(s) for s in grid.runs[:2])
    report = ReportInput(
        runs=runs,
        max_rates={HOSTILE: MaxRate(5.0, 0.9, (), HOSTILE)},
        comparisons=(Comparison(HOSTILE, Spread(1.1, 0.9, 1.2), 5, Verdict.NO_DIFFERENCE),),
    )
    reader = read(render_page(report))
    assert reader.count("script") == 0
    assert reader.count("img") == 0
    assert "no difference shown" in reader.text


def test_warnings_stand_before_the_figures(run_at_8: StoredRun) -> None:
    summary = replace(
        run_at_8.summary, validity=Validity(False, ("late by 80 ms",)), is_interrupted=True
    )
    page = render_page(ReportInput((replace(run_at_8, summary=summary),)))
    assert page.index("late by 80 ms") < page.index('class="cards"')
    assert "interrupted" in read(page).text


def test_a_page_of_many_requests_is_small(make_run) -> None:
    stored = make_run(rate_rps=100.0, window_s=200.0, tokens=20, prefill_tokens_per_s=1e6)
    assert len(stored.record.run.observed) > 20_000
    page = render_page(ReportInput((stored,))).encode()
    assert len(page) < 200_000


def test_a_page_of_many_runs_is_small_and_says_what_it_leaves_out(make_run) -> None:
    runs = tuple(make_run(rate_rps=8.0, window_s=40.0, tokens=20, seed=i) for i in range(20))
    page = render_page(ReportInput(runs))
    assert len(page.encode()) < LIMIT_BYTES
    assert read(page).elements.count(("details", {"class": "run"})) == MAX_DETAILED_RUNS - 1
    assert f"Details of {20 - MAX_DETAILED_RUNS} more runs" in page


def test_a_page_of_many_classes_and_instances_is_small(run_at_8: StoredRun) -> None:
    run = run_at_8.record.run
    observed = tuple(replace(o, slo_class=f"class {o.index}" + "x" * 500) for o in run.observed)
    samples = tuple(
        replace(s, running={f"i{i}": 1.0 for i in range(300)}, waiting={}) for s in run.samples
    )
    run = replace(run, observed=observed, samples=samples)
    about = run_at_8.record.about
    stored = StoredRun(RunRecord(about, run), summarise(run, about))
    page = render_page(ReportInput((stored,)))
    assert len(page.encode()) < LIMIT_BYTES
    assert "more groups are not listed" in page


def test_a_grid_shows_target_and_max_rate(grid: ReportInput) -> None:
    page = render_page(grid)
    assert "target 90 %" in page
    assert "max rate 5.70/s" in page
    assert page.count('<details class="run"') == len(grid.runs)
    assert page.count('<details class="run" open>') == 1
    assert len(re.findall(r'id="run\d-latency"', page)) == len(grid.runs)
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert len(page.encode()) < LIMIT_BYTES


def test_both_sides_of_a_comparison_are_drawn(grid: ReportInput) -> None:
    def as_side(stored: StoredRun, side: str) -> StoredRun:
        return replace(stored, origin=replace(stored.origin, side=side))

    runs = tuple(as_side(s, side) for s in grid.runs[:3] for side in ("bana", "stock"))
    rates = {"bana": MaxRate(5.0, 0.9, (), "r"), "stock": MaxRate(4.0, 0.9, (), "r")}
    compared = Comparison("goodput", Spread(1.25, 1.1, 1.4), 5, Verdict.BETTER)
    page = render_page(ReportInput(runs, rates, (compared,)))
    assert "bana max rate 5.00/s" in page
    assert "stock max rate 4.00/s" in page
    assert page.index('id="comparison"') < page.index('id="load"')


@pytest.mark.parametrize(
    "changes",
    [
        {"observed": (), "probes": (), "samples": ()},
        {"probes": (), "samples": ()},
    ],
)
def test_a_run_with_little_in_it_has_a_page(run_at_8: StoredRun, changes: dict) -> None:
    run, about = replace(run_at_8.record.run, **changes), run_at_8.record.about
    stored = StoredRun(RunRecord(about, run), summarise(run, about))
    assert stored.summary.sentence in read(render_page(ReportInput((stored,)))).text


def test_a_run_without_an_answer_or_a_limit_has_a_page(run_at_8: StoredRun) -> None:
    run, about = run_at_8.record.run, run_at_8.record.about
    observed = tuple(
        replace(o, ending=Ending.FAILED, first_s=None, last_s=None, output_tokens=0,
                event_times_s=(), event_tokens=(), limits=Limits())
        for o in run.observed
    )  # fmt: skip
    run = replace(run, observed=observed)
    stored = StoredRun(RunRecord(about, run), summarise(run, about))
    page = render_page(ReportInput((stored,)))
    assert "no request has it" in page
    assert "limit " not in page.partition('id="definitions"')[0].partition("<body>")[2]


def test_no_runs_are_no_report() -> None:
    with pytest.raises(ConfigError, match="0 runs, allowed: 1 or more"):
        render_page(ReportInput(()))
