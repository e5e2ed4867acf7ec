"""A short run of the model; `make model` runs a long one."""

from pathlib import Path

import pytest
from hypothesis import settings

from tests.model.machine import ANY_HEALTH, HostAndShadow

STEPS = 50


@pytest.mark.root
@pytest.mark.timeout(300)
class TestHostAndShadow(HostAndShadow.TestCase):
    settings = settings(
        max_examples=4,  # the first one is always dull
        stateful_step_count=STEPS,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=ANY_HEALTH,
    )

    @pytest.fixture(autouse=True)
    def _template(self, shared_templates: Path) -> None:
        """It is made once, before the engine looks for it."""
