"""Figures are told as data. Run where matplotlib is: it is no part of what tests install."""

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CHARTS = Path(__file__).parents[3] / "src" / "sandlot" / "host" / "kernels" / "python_charts.py"


@pytest.fixture
def plot(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("MPLBACKEND", "Agg")
    found = pytest.importorskip("matplotlib.pyplot", reason="matplotlib is not installed")
    yield found
    found.close("all")


@pytest.fixture
def chart_of() -> Callable[[Any], dict[str, Any] | None]:
    return runpy.run_path(str(CHARTS))["chart_of"]


def test_lines_and_dots(plot: Any, chart_of: Callable[[Any], dict[str, Any]]) -> None:
    plot.plot([1, 2], [3, 4], label="a")
    plot.title("both")
    plot.xlabel("time (s)")
    chart = chart_of(plot.gcf())
    assert (chart["type"], chart["title"], chart["x_label"], chart["x_unit"]) == ("line", "both", "time", "s")
    assert chart["elements"] == [{"label": "a", "points": [[1.0, 3.0], [2.0, 4.0]]}]
    plot.figure()
    plot.scatter([1], [float("nan")], label="b")
    assert chart_of(plot.gcf())["elements"] == [{"label": "b", "points": [[None, None]]}]


def test_bars_lie_and_stand(plot: Any, chart_of: Callable[[Any], dict[str, Any]]) -> None:
    for draw in (plot.bar, plot.barh):
        plot.figure()
        draw(["x", "y"], [3, 4], label="g")
        chart = chart_of(plot.gcf())
        assert [(one["label"], one["group"], one["value"]) for one in chart["elements"]] == [
            ("x", "g", 3.0),
            ("y", "g", 4.0),
        ]


def test_pies_and_boxes(plot: Any, chart_of: Callable[[Any], dict[str, Any]]) -> None:
    plot.pie([25, 75], labels=["p", "q"], autopct="%d%%")
    assert [(one["label"], one["angle"]) for one in chart_of(plot.gcf())["elements"]] == [("p", 90.0), ("q", 270.0)]
    plot.figure()
    plot.boxplot([[1, 2, 3, 4, 9]])
    (box,) = chart_of(plot.gcf())["elements"]
    assert (box["median"], box["max"], box["outliers"]) == (3.0, 4.0, [9.0])


def test_several_in_one(plot: Any, chart_of: Callable[[Any], dict[str, Any] | None]) -> None:
    figure, axes = plot.subplots(1, 2)
    axes[0].plot([1])
    axes[1].bar(["a"], [1])
    chart = chart_of(figure)
    assert chart is not None
    assert (chart["type"], [one["type"] for one in chart["elements"]]) == ("superchart", ["line", "bar"])
    assert chart_of(plot.figure()) is None
