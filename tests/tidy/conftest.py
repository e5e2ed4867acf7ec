"""Counts that a run tells at its end. A test takes the fixture `told` and writes one line under a name of its own."""

import pytest

COUNTS = pytest.StashKey[dict[str, str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[COUNTS] = {}


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for name, line in sorted(config.stash[COUNTS].items()):
        terminalreporter.write_line(f"{name}: {line}")


@pytest.fixture
def told(pytestconfig: pytest.Config) -> dict[str, str]:
    return pytestconfig.stash[COUNTS]
