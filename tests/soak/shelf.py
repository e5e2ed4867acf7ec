"""A second storage of the same kind as the first, so that sessions can be moved wherever tests run."""

from pathlib import Path

from sandlot.config.settings import Settings
from sandlot.host.service import SandboxHostService
from sandlot.host.storage.layers import LayersStorage
from sandlot.wiring.embedded import build

SHELF = "shelf"


class Shelf(LayersStorage):
    name = SHELF

    def __init__(self, data: Path) -> None:
        self._place = data / SHELF
        super().__init__(self._place)

    async def attach(self) -> None:
        self._place.mkdir(mode=0o700, exist_ok=True)
        await super().attach()


def build_two(settings: Settings) -> SandboxHostService:
    engine = build(settings)
    engine._parts.storages._storages[SHELF] = Shelf(settings.data)  # pyright: ignore[reportPrivateUsage]
    return engine
