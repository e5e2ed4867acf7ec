"""What a figure of matplotlib shows, as data. Given to a Python context beside its program, and run there when a figure
is shown for the first time."""

from __future__ import annotations

import math
import re
from typing import Any

_UNIT = re.compile(r"^(.*?)\s*[\(\[]([^\)\]]+)[\)\]]\s*$")
_POINTS_MAX = 10_000


def chart_of(figure: Any) -> dict[str, Any] | None:
    charts = [chart for chart in (_chart(axes) for axes in figure.axes) if chart is not None]
    if len(charts) <= 1:
        return charts[0] if charts else None
    title = figure._suptitle.get_text() if getattr(figure, "_suptitle", None) is not None else ""
    return {"type": "superchart", "title": title, "elements": charts}


def _chart(axes: Any) -> dict[str, Any] | None:
    title = axes.get_title() or axes.get_title("left") or axes.get_title("right")
    kinds = {type(patch).__name__ for patch in axes.patches}
    if "Wedge" in kinds:
        return {"type": "pie", "title": title, "elements": _wedges(axes)}
    boxes = [patch for patch in axes.patches if type(patch).__name__ == "PathPatch"]
    bars = [one for one in axes.containers if type(one).__name__ == "BarContainer"]
    told = {"title": title, **_labels(axes)}
    if bars:
        return {"type": "bar", **told, "elements": _bars(axes, bars)}
    box_lines = _box_lines(axes)
    if boxes or box_lines:
        return {"type": "box_and_whisker", **told, "elements": box_lines}
    dots = [one for one in axes.collections if type(one).__name__ == "PathCollection"]
    if dots:
        return {"type": "scatter", **told, **_scales(axes), "elements": [_dots(one) for one in dots]}
    if axes.lines:
        return {"type": "line", **told, **_scales(axes), "elements": [_line(one) for one in axes.lines]}
    return {"type": "unknown", **told, "elements": []} if axes.has_data() else None


def _number(value: Any) -> Any:
    if bool(getattr(value, "mask", False)):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        return str(value)
    return number if math.isfinite(number) else None


def _unit(label: str) -> tuple[str, str | None]:
    found = _UNIT.match(label)
    return (found.group(1), found.group(2)) if found else (label, None)


def _labels(axes: Any) -> dict[str, Any]:
    (x_label, x_unit), (y_label, y_unit) = _unit(axes.get_xlabel()), _unit(axes.get_ylabel())
    return {"x_label": x_label, "y_label": y_label, "x_unit": x_unit, "y_unit": y_unit}


def _scales(axes: Any) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        told[name + "_ticks"] = [_number(tick) for tick in axis.get_ticklocs()]
        told[name + "_tick_labels"] = [label.get_text() for label in axis.get_ticklabels()]
        is_date = "Date" in type(axis.get_converter() if hasattr(axis, "get_converter") else axis.converter).__name__
        told[name + "_scale"] = "datetime" if is_date else axis.get_scale()
    return told


def _points(xs: Any, ys: Any) -> list[list[Any]]:
    return [[_number(x), _number(y)] for x, y in list(zip(xs, ys))[:_POINTS_MAX]]


def _line(line: Any) -> dict[str, Any]:
    return {"label": line.get_label(), "points": _points(line.get_xdata(orig=False), line.get_ydata(orig=False))}


def _dots(dots: Any) -> dict[str, Any]:
    places = dots.get_offsets()
    return {
        "label": dots.get_label(),
        "points": _points([place[0] for place in places], [place[1] for place in places]),
    }


def _bars(axes: Any, bars: Any) -> list[dict[str, Any]]:
    is_flat = any(getattr(one, "orientation", "") == "horizontal" for one in bars)
    axis = axes.yaxis if is_flat else axes.xaxis
    names = [label.get_text() for label in axis.get_ticklabels()]
    places = [_number(tick) for tick in axis.get_ticklocs()]
    known = dict(zip(places, names))
    told: list[dict[str, Any]] = []
    for group in bars:
        for patch in group.patches:
            middle = patch.get_y() + patch.get_height() / 2 if is_flat else patch.get_x() + patch.get_width() / 2
            near = min(known, key=lambda place: abs((place or 0.0) - middle)) if known else middle
            value = patch.get_width() if is_flat else patch.get_height()
            label = known.get(near) or str(_number(middle))
            told.append({"label": label, "group": group.get_label(), "value": _number(value)})
    return told[:_POINTS_MAX]


def _wedges(axes: Any) -> list[dict[str, Any]]:
    wedges = [patch for patch in axes.patches if type(patch).__name__ == "Wedge"]
    words = [text.get_text() for text in axes.texts]
    named = [word for word in words if not word.rstrip().endswith("%")]
    told: list[dict[str, Any]] = []
    for at, wedge in enumerate(wedges):
        label = wedge.get_label()
        if label.startswith("_"):
            label = named[at] if at < len(named) else ""
        angle = abs(wedge.theta2 - wedge.theta1)
        told.append({"label": label, "angle": _number(angle), "radius": _number(wedge.r)})
    return told


def _box_lines(axes: Any) -> list[dict[str, Any]]:
    """A box is drawn as lines: itself, two whiskers, two caps, the median, and what lies outside."""
    lines = list(axes.lines)
    boxes = [at for at, line in enumerate(lines) if len(line.get_xdata()) == 5 and _is_closed(line)]
    names = [label.get_text() for label in axes.xaxis.get_ticklabels()]
    told: list[dict[str, Any]] = []
    for order, at in enumerate(boxes):
        rest = lines[at + 1 : at + 7]
        if len(rest) < 5:
            return []
        box = sorted({float(y) for y in lines[at].get_ydata()})
        ends = sorted(float(y) for cap in rest[2:4] for y in cap.get_ydata()[:1])
        outside = [_number(y) for y in rest[5].get_ydata()] if len(rest) > 5 and len(rest[5].get_xdata()) != 5 else []
        label = names[order] if order < len(names) else ""
        told.append(
            {
                "label": label,
                "min": ends[0],
                "first_quartile": box[0],
                "median": float(rest[4].get_ydata()[0]),
                "third_quartile": box[-1],
                "max": ends[-1],
                "outliers": outside,
            }
        )
    return told


def _is_closed(line: Any) -> bool:
    xs, ys = line.get_xdata(), line.get_ydata()
    return bool(xs[0] == xs[-1] and ys[0] == ys[-1])
