"""Volumes of a host in memory: names, with nothing in them."""

import time
from collections.abc import Sequence
from dataclasses import replace

from sandlot.model import Conflict, NotFound, VolumeInfo, VolumeSpec


class FakeVolumes:
    def __init__(self) -> None:
        self._volumes: dict[str, VolumeInfo] = {}

    async def create_volume(self, spec: VolumeSpec) -> VolumeInfo:
        if spec.name in self._volumes:
            raise Conflict(f"there is a volume {spec.name}", next_step="choose another name")
        self._volumes[spec.name] = VolumeInfo(spec.name, spec.shared, time.time())
        return self._volumes[spec.name]

    async def get_volume(self, name: str) -> VolumeInfo:
        if name not in self._volumes:
            raise NotFound(f"there is no volume {name}", next_step="list them")
        return replace(self._volumes[name], space_used=0)

    async def list_volumes(self) -> Sequence[VolumeInfo]:
        return list(self._volumes.values())

    async def remove_volume(self, name: str) -> None:
        await self.get_volume(name)
        del self._volumes[name]
