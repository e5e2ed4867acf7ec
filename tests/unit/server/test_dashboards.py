"""Every figure that the dashboard and the alerts look at is told by a server."""

import json
import re
from pathlib import Path
from typing import Any

from sandlot.fakes.host import FakeHost
from sandlot.server.crowd import Bounds, Crowd
from sandlot.server.figures import Figures

DEPLOY = Path(__file__).parents[3] / "deploy"
NAME = re.compile(r"\b(?:sandlot|process)_[a-z_]+")


async def told() -> set[str]:
    figures = Figures(Crowd(Bounds(1, 1.0, 1.0)))
    figures.begin()
    figures.end("/sandlot.v1.HostService/HealthCheck", 200, 0.01)
    page = figures.page(await FakeHost().health()).decode()
    return {line.split("{")[0].split(" ")[0] for line in page.splitlines() if not line.startswith("#")}


async def test_the_dashboard_asks_for_what_is_told() -> None:
    dashboard: Any = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    texts = [str(target["expr"]) for panel in dashboard["panels"] for target in panel["targets"]]
    asked = {name for text in texts for name in NAME.findall(text)}
    assert len(asked) >= 15
    assert asked - await told() == set()
    panels = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(panels)) == len(panels)


async def test_alerts_ask_for_what_is_told_and_are_explained() -> None:
    text = (DEPLOY / "prometheus-alerts.yaml").read_text()
    asked = {name for line in re.findall(r"^\s+expr: (.*)$", text, re.M) for name in NAME.findall(line)}
    assert len(asked) >= 8
    assert asked - await told() == set()
    alerts = re.findall(r"- alert: (\w+)", text)
    explained = (DEPLOY.parent / "docs" / "operating" / "alerts.md").read_text()
    assert [name for name in alerts if f"`{name}`" not in explained] == []
    assert len(alerts) == text.count("summary:") == text.count("expr:")


async def test_a_figure_that_nobody_tells_would_be_found() -> None:
    assert {"sandlot_made_up"} - await told() == {"sandlot_made_up"}
