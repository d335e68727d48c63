"""Of what waits to be read, a want hears what is read before it."""

from __future__ import annotations

import math

import msgspec

from bana.radix_global.daemon.weather import read_weather
from bana.radix_global.reader.report import TierReport

REPORT = TierReport(
    tier=2,
    width=4,
    bandwidth_bytes_per_s=100.0,
    latency_s=None,
    backlog_pages=6,
    backlog_bytes=600,
    reading_pages=0,
    overdue_pages=0,
    read_bytes=0,
    outcomes={},
    backlog_by_due=((9.0, 300), (1.0, 100), (math.inf, 200)),
)


def test_less_urgent_pages_are_not_in_the_way() -> None:
    weather = read_weather([REPORT], {2: "disk"})
    (told,) = weather.tiers
    assert (told.place, told.name, told.backlog_bytes, told.latency_s) == (2, "disk", 600, 0.0)
    seen = {due_s: weather.before(due_s, {})[0].backlog_bytes for due_s in (0.5, 1.0, 8.9, 9.0)}
    assert seen == {0.5: 0, 1.0: 100, 8.9: 100, 9.0: 400}
    assert weather.before(math.inf, {})[0] == told


def test_what_a_want_shares_with_others_is_not_in_its_way() -> None:
    weather = read_weather([REPORT], {2: "disk"})
    backlogs = [weather.before(9.0, {2: own})[0].backlog_bytes for own in (0, 300, 500)]
    assert backlogs == [400, 100, 0]
    assert weather.before(9.0, {1: 300})[0].backlog_bytes == 400


def test_a_tier_on_which_nothing_waits_is_in_nobodys_way() -> None:
    idle = msgspec.structs.replace(REPORT, backlog_bytes=0, backlog_by_due=())
    assert read_weather([idle], {2: "disk"}).before(5.0, {})[0].backlog_bytes == 0
