"""A short part of `make soak`: engines are killed at named places, and the next one finds a world that fits."""

from pathlib import Path

import pytest

from tests.soak.run import soak

pytestmark = pytest.mark.root


@pytest.mark.timeout(180)
async def test_a_world_survives_kills(data_dir: Path) -> None:
    assert await soak(kills=20, seed=7, data=data_dir) == 0
