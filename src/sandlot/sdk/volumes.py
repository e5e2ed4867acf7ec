"""Volumes: directories with names that outlive sandboxes."""

import builtins
from typing import Self

from sandlot.model import NotFound, VolumeInfo, VolumeSpec, check_volume_name
from sandlot.sdk.client import Client, default_client, in_portal


class AsyncVolume:
    """One volume. `Sandbox.create(volumes={"/cache": "name"})` gives a sandbox one; it is outside of snapshots."""

    def __init__(self, name: str, *, client: Client | None = None) -> None:
        self._name = check_volume_name(name)
        self._client = client or default_client()

    @property
    def name(self) -> str:
        return self._name

    @property
    def client(self) -> Client:
        return self._client

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._name!r})"

    @classmethod
    async def create(cls, name: str, *, shared: bool = False, client: Client | None = None) -> Self:
        """A new one, empty. Several sandboxes at once have it only when it is `shared`. Raises Conflict when there is
        one of that name."""
        volume = cls(name, client=client)
        await volume._create(VolumeSpec(name, shared))
        return volume

    @in_portal
    async def _create(self, spec: VolumeSpec) -> VolumeInfo:
        return await (await self._client.host()).create_volume(spec)

    @classmethod
    async def list(cls, *, client: Client | None = None) -> builtins.list[VolumeInfo]:
        """All of them, with the sandboxes that have them."""
        volume = cls("any", client=client)
        return await volume._all()

    @in_portal
    async def _all(self) -> builtins.list[VolumeInfo]:
        return [*await (await self._client.host()).list_volumes()]

    @in_portal
    async def info(self) -> VolumeInfo:
        """All that can be told of it, the space that it takes included. Raises NotFound."""
        return await (await self._client.host()).get_volume(self._name)

    @in_portal
    async def remove(self) -> bool:
        """With all that is in it; it is gone for good when this returns. False when it was gone already. Raises
        Conflict while a sandbox has it."""
        try:
            await (await self._client.host()).remove_volume(self._name)
        except NotFound:
            return False
        return True
