"""A short run of the model; `make model` runs a long one."""

from pathlib import Path

import pytest
from hypothesis import settings

from tests.model.machine import ANY_HEALTH, HostAndShadow

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]


@pytest.fixture(autouse=True)
def template(shared_templates: Path) -> None:  # pyright: ignore[reportUnusedFunction]
    """It is made once, before the engine looks for it."""


TestHostAndShadow = HostAndShadow.TestCase
TestHostAndShadow.settings = settings(
    max_examples=12,  # the first one is always dull
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=ANY_HEALTH,
)
