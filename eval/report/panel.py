"""One plot with two axes: figures go in, places on a drawing come out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from bana.eval.report.curves import Curve
from bana.eval.report.marks import Shape, outline_mark
from bana.eval.report.scale import Axis
from bana.eval.report.svg import Anchor, Drawing, Point

TICK_LENGTH = 4.0
LETTER_WIDTH = 7.2
ROW_HEIGHT = 16.0
FOOT = 4.0


class Frame(msgspec.Struct, frozen=True):
    """The size of a plot and the room around its data, in drawing units."""

    width: float = 520.0
    height: float = 262.0
    left: float = 70.0
    right: float = 32.0
    top: float = 26.0
    bottom: float = 32.0

    @property
    def end(self) -> float:
        """The right side of the data."""
        return self.width - self.right

    @property
    def floor(self) -> float:
        """The lower side of the data."""
        return self.height - self.bottom


HALF = Frame()
FULL = Frame(width=1060.0, height=320.0)
STRIP = Frame(width=1060.0, height=150.0, top=14.0, bottom=28.0)
NAME_HEIGHT = 22.0


class Panel:
    """Draws figures onto a drawing whose axes `open_panel` has drawn.

    What lies off an axis is drawn at its nearer end.
    """

    def __init__(self, drawing: Drawing, frame: Frame, x: Axis, y: Axis) -> None:
        self.drawing = drawing
        self.frame = frame
        self._x = x
        self._y = y

    def place(self, x: float, y: float) -> Point:
        """Where a pair of figures lies."""
        return Point(self.place_x(x), self.place_y(y))

    def place_x(self, x: float) -> float:
        """Where a figure lies from left to right."""
        frame = self.frame
        return frame.left + self._x.scale.share(x) * (frame.end - frame.left)

    def place_y(self, y: float) -> float:
        """Where a figure lies from top to bottom."""
        frame = self.frame
        return frame.floor - self._y.scale.share(y) * (frame.floor - frame.top)

    def draw_curve(self, curve: Curve, css: str) -> None:
        """Points joined by straight lines."""
        points = [self.place(x, y) for x, y in zip(curve.xs, curve.ys, strict=True)]
        self.drawing.add_path(points, f"line {css}")

    def draw_steps(self, edges: Sequence[float], heights: Sequence[float], css: str) -> None:
        """A line that keeps each height between two edges."""
        self.drawing.add_path(self._walk_steps(edges, heights), f"line {css}")

    def fill_steps(
        self, edges: Sequence[float], floors: Sequence[float], heights: Sequence[float], css: str
    ) -> None:
        """The area between two step lines."""
        above, below = self._walk_steps(edges, heights), self._walk_steps(edges, floors)
        self.drawing.add_area([*above, *reversed(below)], f"area {css}")

    def fill_box(self, low: Point, high: Point, css: str, tip: str) -> None:
        """A box between two pairs of figures."""
        start, end = self.place(low.x, high.y), self.place(high.x, low.y)
        if end.x - start.x >= 0.1:
            sides = {"width": end.x - start.x, "height": end.y - start.y}
            self.drawing.add("rect", f"area {css}", {"x": start.x, "y": start.y, **sides}, tip)

    def draw_mark(self, at: Point, shape: Shape, css: str, tip: str) -> None:
        """A mark at a pair of figures."""
        outline = outline_mark(shape, self.place(at.x, at.y))
        self.drawing.add("path", f"mark {shape.value} {css}", {"d": outline}, tip)

    def draw_interval(self, low: Point, high: Point, css: str) -> None:
        """A level or upright interval between two pairs of figures, with a foot at either end."""
        ends = self.place(low.x, low.y), self.place(high.x, high.y)
        across, along = (FOOT, 0.0) if ends[0].x == ends[1].x else (0.0, FOOT)
        self.drawing.add_path(ends, f"bar {css}")
        for end in ends:
            foot = [Point(end.x - across, end.y - along), Point(end.x + across, end.y + along)]
            self.drawing.add_path(foot, f"bar {css}")

    def draw_level(self, y: float, text: str, css: str) -> None:
        """A line across the plot that is named at its left end."""
        frame, at = self.frame, self.place_y(y)
        self.drawing.add_path([Point(frame.left, at), Point(frame.end, at)], f"rule {css}")
        self.drawing.add_text(Point(frame.left + 6, at - 6), text, "note")

    def draw_upright(self, x: float, text: str, css: str, row: int = 0) -> None:
        """A line from top to bottom, named in a row above the plot and within its sides."""
        frame, at = self.frame, self.place_x(x)
        top = frame.top - row * ROW_HEIGHT
        self.drawing.add_path([Point(at, top - 2), Point(at, frame.floor)], f"rule {css}")
        half = len(text) * LETTER_WIDTH / 2
        centre = min(max(at, frame.left + half), frame.width - 2 - half)
        self.drawing.add_text(Point(centre, top - 6), text, f"note {css}", Anchor.MIDDLE)

    def shade(self, low: float, high: float, css: str) -> None:
        """The ground between two figures, over the height of the plot."""
        left, right = self.place_x(low), self.place_x(high)
        if right - left >= 0.5:
            sides = {"width": right - left, "height": self.frame.floor - self.frame.top}
            self.drawing.add("rect", css, {"x": left, "y": self.frame.top, **sides})

    def render(self) -> str:
        """The plot as markup."""
        return self.drawing.render()

    def _walk_steps(self, edges: Sequence[float], heights: Sequence[float]) -> list[Point]:
        # A level stretch is one stroke, however many bins it lasts.
        walked: list[Point] = []
        for (left, right), height in zip(pairwise(edges), heights, strict=True):
            start, end = self.place(left, height), self.place(right, height)
            if walked and walked[-1].y == start.y:
                walked[-1] = end
            else:
                walked += [start, end]
        return walked


def open_panel(frame: Frame, x: Axis, y: Axis, label: str) -> Panel:
    """A panel with its axes drawn; `label` says in words what the plot shows."""
    if x.label:
        height, bottom = frame.height + NAME_HEIGHT, frame.bottom + NAME_HEIGHT
        frame = msgspec.structs.replace(frame, height=height, bottom=bottom)
    drawing = Drawing(frame.width, frame.height, label)
    panel = Panel(drawing, frame, x, y)
    for tick in y.ticks:
        at = panel.place_y(tick.at)
        drawing.add_path([Point(frame.left, at), Point(frame.end, at)], "grid")
        drawing.add_text(Point(frame.left - 9, at + 4.5), tick.text, "tick", Anchor.END)
    for tick in x.ticks:
        at = panel.place_x(tick.at)
        drawing.add_path([Point(at, frame.floor), Point(at, frame.floor + TICK_LENGTH)], "axis")
        drawing.add_text(Point(at, frame.floor + 20), tick.text, "tick", Anchor.MIDDLE)
    drawing.add_path([Point(frame.left, frame.floor), Point(frame.end, frame.floor)], "axis")
    if x.label:
        middle = Point((frame.left + frame.end) / 2, frame.height - 7)
        drawing.add_text(middle, x.label, "name", Anchor.MIDDLE)
    return panel
