"""Templates: what sandboxes start from."""

import builtins
import os
from collections.abc import Callable
from pathlib import Path

from sandlot.model import TemplateImport, TemplateInfo, TemplateRequest, TemplateStep
from sandlot.sdk.client import Client, default_client, in_portal


def _absolute(path: str | os.PathLike[str]) -> str:
    return str(Path(path).absolute())


OnStep = Callable[[TemplateStep], None]


class AsyncTemplates:
    """Those of one host, beside the built-in one."""

    def __init__(self, *, client: Client | None = None) -> None:
        self._client = client or default_client()

    @property
    def client(self) -> Client:
        return self._client

    @in_portal
    async def list(self) -> builtins.list[TemplateInfo]:
        """All that were made, oldest first."""
        return [*await (await self._client.host()).list_templates()]

    @in_portal
    async def get(self, name: str) -> TemplateInfo:
        """By name or digest. Raises TemplateNotFound."""
        return await (await self._client.host()).get_template(name)

    @in_portal
    async def import_path(
        self, path: str | os.PathLike[str], name: str, *, image: str = "", on_step: OnStep | None = None
    ) -> TemplateInfo:
        """From a file or a directory: a root filesystem, an OCI image layout, or what `docker save` writes. `image`
        says which one, where there are several; `on_step` hears how far it is. When this returns it is durable. Raises
        InvalidArgument with the reason when it is broken, hostile or too large."""
        return await self._make(TemplateImport(_absolute(path), name, image), on_step)

    async def _make(self, request: TemplateRequest, on_step: OnStep | None) -> TemplateInfo:
        async with (await self._client.host()).make_template(request) as steps:
            async for step in steps:
                if isinstance(step, TemplateInfo):
                    return step
                if on_step is not None:
                    on_step(step)
        raise AssertionError("a template that was made is told of")

    @in_portal
    async def tag(self, name: str, new_name: str) -> TemplateInfo:
        """Give it another name, too. Raises TemplateNotFound."""
        return await (await self._client.host()).tag_template(name, new_name)

    @in_portal
    async def remove(self, name: str) -> TemplateInfo:
        """Take a name away, and with the last one, or by digest, the template. Raises TemplateNotFound, Conflict while
        a session stands on it."""
        return await (await self._client.host()).remove_template(name)

    @in_portal
    async def prune(self, keep_bytes: int) -> builtins.list[TemplateInfo]:
        """Remove the least recently used until the others fit; tells which. What a session stands on stays."""
        return [*await (await self._client.host()).prune_templates(keep_bytes)]
