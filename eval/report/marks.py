"""Shapes that mark a point, so that series differ by more than their colour."""

from __future__ import annotations

import math
from enum import StrEnum

from bana.eval.report.svg import Point, trim

RADIUS = 4.5


class Shape(StrEnum):
    """What a mark looks like."""

    CIRCLE = "circle"
    SQUARE = "square"
    TRIANGLE = "triangle"
    DIAMOND = "diamond"
    CROSS = "cross"


SERIES_SHAPES = (Shape.CIRCLE, Shape.SQUARE, Shape.TRIANGLE, Shape.DIAMOND)
_CORNERS = {Shape.SQUARE: (4, math.pi / 4), Shape.DIAMOND: (4, 0.0), Shape.TRIANGLE: (3, 0.0)}


def outline_mark(shape: Shape, at: Point) -> str:
    """The path of a mark around a place on a drawing."""
    if shape is Shape.CIRCLE:
        half = f"a{RADIUS},{RADIUS} 0 1 0"
        return f"M{trim(at.x - RADIUS)},{trim(at.y)}{half} {2 * RADIUS},0{half} {-2 * RADIUS},0Z"
    if shape is Shape.CROSS:
        left, right = trim(at.x - RADIUS), trim(at.x + RADIUS)
        top, bottom = trim(at.y - RADIUS), trim(at.y + RADIUS)
        return f"M{left},{top}L{right},{bottom}M{left},{bottom}L{right},{top}"
    return _outline_polygon(at, *_CORNERS[shape])


def _outline_polygon(at: Point, corners: int, turn: float) -> str:
    angles = [turn + 2 * math.pi * i / corners for i in range(corners)]
    reach = RADIUS * 1.25
    ends = [
        f"{trim(at.x + reach * math.sin(a))},{trim(at.y - reach * math.cos(a))}" for a in angles
    ]
    return f"M{'L'.join(ends)}Z"
