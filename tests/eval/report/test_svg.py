from xml.etree import ElementTree

from bana.eval.report.svg import Anchor, Drawing, Point, trim

HOSTILE = "</svg><script>alert(1)</script>\" onload='x' \x00\ud800 & <b>"


def test_nothing_that_is_drawn_can_leave_its_place() -> None:
    drawing = Drawing(10, 10, HOSTILE)
    drawing.add_text(Point(1, 2), HOSTILE, "tick", Anchor.END)
    drawing.add("rect", "area", {"x": 1.0}, HOSTILE)
    parsed = ElementTree.fromstring(drawing.render())
    assert [element.tag for element in parsed.iter()] == ["svg", "text", "rect", "title"]
    assert {name for e in parsed.iter() for name in e.attrib} == {
        "viewBox", "role", "aria-label", "class", "x", "y", "text-anchor"
    }  # fmt: skip


def test_drawings_say_what_they_show() -> None:
    root = ElementTree.fromstring(Drawing(520, 290, "TTFT by class").render())
    assert root.get("role") == "img"
    assert root.get("aria-label") == "TTFT by class"
    assert root.get("viewBox") == "0 0 520 290"


def test_coordinates_are_short() -> None:
    assert [trim(v) for v in (1.0, 1.26, -0.01, 1000.04)] == ["1", "1.3", "0", "1000"]


def test_a_path_without_points_is_not_drawn() -> None:
    drawing = Drawing(10, 10, "empty")
    drawing.add_path([], "line")
    drawing.add_area([], "area")
    assert len(ElementTree.fromstring(drawing.render())) == 0
