"""One SVG drawing. Every text and attribute passes through an XML writer, which escapes it.

Colours, fonts and dashes come from the page's style sheet by class, so that one drawing serves
light, dark and print.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from xml.etree import ElementTree

import msgspec

from bana.eval.report.text import clean_text


class Point(msgspec.Struct, frozen=True):
    """Pixels, or data where a panel says so."""

    x: float
    y: float


class Anchor(StrEnum):
    """Which end of a text lies at its point."""

    START = "start"
    MIDDLE = "middle"
    END = "end"


class Drawing:
    """An SVG under construction, `width` by `height` units that scale with the page."""

    def __init__(self, width: float, height: float, label: str) -> None:
        self._root = ElementTree.Element(
            "svg",
            {
                "viewBox": f"0 0 {trim(width)} {trim(height)}",
                "role": "img",
                "aria-label": clean_text(label, 600),
            },
        )

    def add(self, tag: str, css: str, attributes: Mapping[str, float | str], tip: str = "") -> None:
        """A shape of class `css`; `tip` shows when the pointer rests on it."""
        written = {name: _write(value) for name, value in attributes.items()}
        element = ElementTree.SubElement(self._root, tag, {"class": css, **written})
        if tip:
            ElementTree.SubElement(element, "title").text = clean_text(tip)

    def add_text(self, at: Point, text: str, css: str, anchor: Anchor = Anchor.START) -> None:
        """A line of text."""
        written = {"class": css, "x": trim(at.x), "y": trim(at.y), "text-anchor": anchor.value}
        ElementTree.SubElement(self._root, "text", written).text = clean_text(text)

    def add_path(self, points: Sequence[Point], css: str) -> None:
        """A line through the points."""
        if points:
            self.add("path", css, {"d": "M" + "L".join(_join(p) for p in points)})

    def add_area(self, points: Sequence[Point], css: str) -> None:
        """What the points enclose."""
        if points:
            self.add("path", css, {"d": "M" + "L".join(_join(p) for p in points) + "Z"})

    def render(self) -> str:
        """The drawing as markup for an HTML page."""
        return ElementTree.tostring(self._root, encoding="unicode")


def trim(value: float) -> str:
    """A coordinate with at most one decimal: finer than any screen shows."""
    text = f"{value:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text


def _join(point: Point) -> str:
    return f"{trim(point.x)},{trim(point.y)}"


def _write(value: float | str) -> str:
    return value if isinstance(value, str) else trim(value)
