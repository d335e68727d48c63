from xml.etree import ElementTree

from bana.eval.report.curves import Curve
from bana.eval.report.marks import Shape, outline_mark
from bana.eval.report.numbers import format_figure
from bana.eval.report.panel import HALF, Panel, open_panel
from bana.eval.report.scale import plan_linear
from bana.eval.report.svg import Point


def open_square() -> Panel:
    axis = plan_linear(0.0, 10.0, format_figure)
    return open_panel(HALF, axis, axis, "a square")


def texts(panel: Panel) -> list[str | None]:
    return [e.text for e in ElementTree.fromstring(panel.render()).iter("text")]


def paths(panel: Panel, css: str) -> list[str]:
    root = ElementTree.fromstring(panel.render())
    return [e.get("d") or "" for e in root.iter("path") if css in (e.get("class") or "").split()]


def test_axes_are_named_by_their_ticks() -> None:
    assert texts(open_square()).count("10.0") == 2


def test_corners_lie_at_the_corners() -> None:
    panel = open_square()
    assert panel.place(0, 0) == Point(HALF.left, HALF.floor)
    assert panel.place(10, 10) == Point(HALF.end, HALF.top)
    assert panel.place(-5, 99) == Point(HALF.left, HALF.top)


def test_level_stretches_cost_two_points() -> None:
    panel = open_square()
    panel.draw_steps([0, 1, 2, 3, 4], [5, 5, 5, 6], "s0")
    (path,) = paths(panel, "s0")
    assert len(path.split("L")) == 4


def test_names_of_uprights_stay_within_the_plot() -> None:
    panel = open_square()
    panel.draw_upright(0.0, "a name of some length", "muted")
    panel.draw_upright(10.0, "a name of some length", "muted", row=1)
    root = ElementTree.fromstring(panel.render())
    notes = [e for e in root.iter("text") if "note" in (e.get("class") or "")]
    places = [float(e.get("x") or 0) for e in notes]
    assert min(places) > 100
    assert max(places) < HALF.width - 70


def test_empty_boxes_and_curves_are_not_drawn() -> None:
    panel = open_square()
    panel.fill_box(Point(1, 1), Point(1, 2), "met", "nothing")
    panel.shade(3.0, 3.0, "outside")
    panel.draw_curve(Curve((), ()), "s0")
    assert not list(ElementTree.fromstring(panel.render()).iter("rect"))
    assert paths(panel, "s0") == []


def test_marks_differ_by_shape() -> None:
    outlines = {outline_mark(shape, Point(10, 10)) for shape in Shape}
    assert len(outlines) == len(Shape)
