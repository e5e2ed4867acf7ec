"""Fixtures for tests of programs that use sandboxes. pytest finds them by itself where Sandlot is installed.

`sandbox` is a real one, `sandbox_factory` makes real ones, and `fake_sandbox` is one in memory that starts at once and
needs neither Linux nor rights. All of them are gone at the end of the test. What `Sandbox.create` takes can be given
with the marker: `@pytest.mark.sandbox(runtime="none", labels={"a": "b"})`.
"""

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from sandlot import registry
from sandlot.contracts import Host
from sandlot.model import BUILTIN, SandlotError
from sandlot.sdk.client import Client
from sandlot.sdk.sync import Sandbox

SandboxFactory = Callable[..., Sandbox]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "sandbox(**options): what the fixture `sandbox` gives to Sandbox.create")


@contextmanager
def _factory(client: Client | None) -> Generator[SandboxFactory]:
    made: list[Sandbox] = []

    def make(template: str = BUILTIN, **options: Any) -> Sandbox:
        given: dict[str, Any] = {"client": client, **options, "detach": True}
        made.append(Sandbox.create(template, **given))
        return made[-1]

    try:
        yield make
    finally:
        errors: list[SandlotError] = []
        for sandbox in made:
            try:
                sandbox.kill()
            except SandlotError as error:  # the others are to go all the same
                errors.append(error)
        if errors:
            raise errors[0]


def _options(request: pytest.FixtureRequest) -> dict[str, Any]:
    node: pytest.Item = request.node
    marker = node.get_closest_marker("sandbox")
    return dict(marker.kwargs) if marker else {}


@pytest.fixture
def sandbox_factory() -> Iterator[SandboxFactory]:
    """Makes sandboxes, with the arguments of `Sandbox.create`."""
    with _factory(None) as make:
        yield make


@pytest.fixture
def sandbox(request: pytest.FixtureRequest, sandbox_factory: SandboxFactory) -> Sandbox:
    """A sandbox of its own for each test."""
    return sandbox_factory(**_options(request))


@pytest.fixture
def fake_host() -> Host:
    """The host of `fake_sandbox`: `fake_host.programs["python3"] = ...` gives its commands a program."""
    return registry.load("host", "fake")()


@pytest.fixture
def fake_sandbox(request: pytest.FixtureRequest, fake_host: Host) -> Iterator[Sandbox]:
    """A sandbox in memory, with the same methods. What it leaves out raises CapabilityNotSupported. Which runtime and
    storage a marker asks for does not matter here."""
    options = {name: value for name, value in _options(request).items() if name not in ("runtime", "storage")}
    with Client(host=fake_host, on_portal=True) as client, _factory(client) as make:
        yield make(**options)
