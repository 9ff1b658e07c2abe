"""A picture of points over a logarithmic axis, as SVG; no plotting library needed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from attrs import define

_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT, _BOTTOM = 760, 420, 60, 20, 150, 50


@define(frozen=True, kw_only=True)
class Point:
    """A named place, and how far its height spreads."""

    name: str
    x: float
    y: float
    low: float
    high: float


def scatter(points: Sequence[Point], *, x: str, y: str) -> str:
    """Draw named points: `x` and `y` name the axes, of which the first counts in powers of 10.

    >>> scatter([Point(name="a", x=100, y=1.0, low=0.5, high=1.5)], x="bytes", y="%").startswith("<svg ")
    True
    """
    first = math.floor(math.log10(min(point.x for point in points)))
    last = math.floor(math.log10(max(point.x for point in points))) + 1
    low, high = math.floor(min(point.low for point in points)), math.floor(max(point.high for point in points)) + 1

    def across(value: float) -> float:
        return _LEFT + (math.log10(value) - first) / (last - first) * (_WIDTH - _LEFT - _RIGHT)

    def down(value: float) -> float:
        return _TOP + (high - value) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)

    bottom, right = down(low), across(10**last)
    marks = []
    for power in range(first, last + 1):
        marks.append(_line(across(10**power), _TOP, across(10**power), bottom, "#ddd"))
        marks.append(_text(across(10**power), bottom + 18, f"{10**power:,}", "middle"))
    for height in range(low, high + 1):
        marks.append(_line(_LEFT, down(height), right, down(height), "#ddd"))
        marks.append(_text(_LEFT - 8, down(height) + 4, f"{height}", "end"))
    marks.append(_text((_LEFT + right) / 2, _HEIGHT - 8, x, "middle"))
    marks.append(_text(8, _TOP - 6, y, "start"))
    for point in points:
        marks.append(_line(across(point.x), down(point.low), across(point.x), down(point.high), "#36c"))
        marks.append(f'<circle cx="{across(point.x):.1f}" cy="{down(point.y):.1f}" r="4" fill="#36c"/>')
        marks.append(_text(across(point.x) + 8, down(point.y) - 6, point.name, "start"))
    size = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="12"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n' + "\n".join(marks) + "\n</svg>\n"


def _line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def _text(x: float, y: float, content: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(content)}</text>'
