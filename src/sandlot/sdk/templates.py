"""Templates: what sandboxes start from."""

import builtins
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from sandlot.model import (
    Start,
    TemplateImport,
    TemplateInfo,
    TemplatePull,
    TemplateRequest,
    TemplateSnapshot,
    TemplateStep,
)
from sandlot.sdk.building import OnLine, build
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
        self,
        path: str | os.PathLike[str],
        name: str,
        *,
        image: str = "",
        start: str | Sequence[str] | None = None,
        ready: str | None = None,
        ready_timeout: float | None = None,
        on_step: OnStep | None = None,
    ) -> TemplateInfo:
        """From a file or a directory: a root filesystem, an OCI image layout, or what `docker save` writes. `image`
        says which one, where there are several; `on_step` hears how far it is. Every sandbox of it runs `start` from
        its beginning, and is there when that is `ready`: `running`, `port 8000`, `http 8000 /path` or `log TEXT`,
        within `ready_timeout` seconds; `ready` alone starts what the image says. When this returns it is durable.
        Raises InvalidArgument with the reason when it is broken, hostile or too large."""
        told = Start.of(start, ready, ready_timeout)
        return await self._make(TemplateImport(_absolute(path), name, image, told), on_step)

    @in_portal
    async def pull(
        self,
        reference: str,
        name: str,
        *,
        auth_file: str | os.PathLike[str] = "",
        insecure: bool = False,
        start: str | Sequence[str] | None = None,
        ready: str | None = None,
        ready_timeout: float | None = None,
        on_step: OnStep | None = None,
    ) -> TemplateInfo:
        """The image for this machine from a registry: HOST/REPOSITORY:TAG or HOST/REPOSITORY@DIGEST. `auth_file` is as
        `docker login` writes it. `insecure` goes without TLS, which is only done on loopback otherwise. `start`,
        `ready` and `ready_timeout` are as in `import_path`. Raises NotFound, PermissionDenied, InvalidArgument with the
        reason when the image cannot be taken, Unavailable."""
        told = Start.of(start, ready, ready_timeout)
        return await self._make(TemplatePull(reference, name, os.fspath(auth_file), insecure, told), on_step)

    @in_portal
    async def from_snapshot(
        self,
        sandbox_id: str,
        snapshot: str,
        name: str,
        *,
        start: str | Sequence[str] | None = None,
        ready: str | None = None,
        ready_timeout: float | None = None,
        on_step: OnStep | None = None,
    ) -> TemplateInfo:
        """All files of a sandbox at a snapshot, or at a turn, those of its template included. `start`, `ready` and
        `ready_timeout` are as in `import_path`. Raises SessionNotFound, SnapshotNotFound, CapabilityNotSupported."""
        told = Start.of(start, ready, ready_timeout)
        return await self._make(TemplateSnapshot(sandbox_id, snapshot, name, start=told), on_step)

    @in_portal
    async def build(
        self,
        context: str | os.PathLike[str],
        name: str,
        *,
        file: str | os.PathLike[str] | None = None,
        args: Mapping[str, str] | None = None,
        on_line: OnLine | None = None,
    ) -> TemplateInfo:
        """From a build file, which is `Dockerfile` in the directory `context` unless `file` says otherwise: FROM (a
        template that is there), RUN, COPY, ENV, WORKDIR, USER, CMD, ENTRYPOINT, LABEL, ARG, and of our own START and
        READY. Steps that were done before are not done again. `on_line` hears what is done. Raises InvalidArgument,
        which names the line."""
        return await build(await self._client.host(), context, name, file, args or {}, on_line)

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
    async def warm(self, name: str, count: int = 1) -> TemplateInfo:
        """Keep so many sandboxes of it ready, as long as this program runs, those of templates that start something
        serving; they are when this returns. Raises TemplateNotFound, StartFailed."""
        return await (await self._client.host()).warm_template(name, count)

    @in_portal
    async def remove(self, name: str) -> TemplateInfo:
        """Take a name away, and with the last one, or by digest, the template. Raises TemplateNotFound, Conflict while
        a session stands on it."""
        return await (await self._client.host()).remove_template(name)

    @in_portal
    async def prune(self, keep_bytes: int) -> builtins.list[TemplateInfo]:
        """Remove the least recently used until the others fit; tells which. What a session stands on stays."""
        return [*await (await self._client.host()).prune_templates(keep_bytes)]
