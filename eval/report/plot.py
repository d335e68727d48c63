"""A finished plot as a page shows it."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from bana.eval.report.records import NumberTable

MAX_SERIES = 4
SERIES_CSS = ("s0", "s1", "s2", "s3")


class Width(StrEnum):
    """How much of the page a plot takes where there is room."""

    HALF = "half"
    FULL = "full"


class LegendEntry(msgspec.Struct, frozen=True):
    """What one colour or dash means; `css` is the class of what it explains."""

    css: str
    text: str


class Plot(msgspec.Struct, frozen=True):
    """A drawing with its words, and the same numbers as a table for those who cannot see it.

    `svg` is markup; everything else is text.
    """

    title: str
    svg: str
    caption: str = ""
    legend: tuple[LegendEntry, ...] = ()
    table: NumberTable | None = None
    width: Width = Width.HALF
