"""COMPATIBILITY.md lists what is served, all of it and nothing else."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import cast

import pytest

from sandlot.contracts import Host
from sandlot.fakes.host import FakeHost
from sandlot.gateways.opensandbox import GatewaySettings, OpenSandboxGateway
from sandlot.gateways.opensandbox.application import PROXY, SIGNED
from sandlot.gateways.web import Route

PAGE = Path(__file__).parents[2] / "COMPATIBILITY.md"
ROW = re.compile(r"^\| ([A-Z*]+) (/\S*) \| (served|refused) \|", re.MULTILINE)


def told(section: str) -> list[tuple[str, str]]:
    (text,) = re.findall(rf"^### {section}\b.*?$(.*?)(?=^##|\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return [(method, path) for method, path, _ in ROW.findall(text)]


def served(routes: Iterable[Route]) -> set[tuple[str, str]]:
    return {(route.method, route.pattern) for route in routes if not route.pattern.startswith("/v1/filesystem")}


@pytest.fixture
def gateway() -> OpenSandboxGateway:
    return OpenSandboxGateway(cast("Host", FakeHost()), GatewaySettings(b"secret"))


def test_opensandbox(gateway: OpenSandboxGateway) -> None:
    lifecycle = {*served(gateway.lifecycle.routes), *served(gateway.open.routes), ("*", PROXY), ("*", SIGNED)}
    for section, routes in (
        ("Lifecycle", lifecycle),
        ("ExecD", served(gateway.execd.routes)),
        ("Egress", served(gateway.egress.routes)),
    ):
        rows = told(section)
        assert len(rows) == len(set(rows)), "a row stands there twice"
        assert set(rows) == routes
