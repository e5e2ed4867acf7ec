"""Templates as whoever uses the host sees them."""

import asyncio
import os
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from sandlot.host.kernel import mount_layers
from sandlot.host.lifecycle import Lifecycle
from sandlot.host.parts import HostParts
from sandlot.host.templates.library import Kept
from sandlot.host.templates.making import Tell
from sandlot.host.templates.metadata import Metadata
from sandlot.host.vessels import DEFAULT_USER
from sandlot.model import (
    CapabilityNotSupported,
    SandlotError,
    SnapshotNotFound,
    TemplateConfig,
    TemplateEvent,
    TemplateImport,
    TemplateInfo,
    TemplatePull,
    TemplateRequest,
    TemplateSnapshot,
    TemplateStep,
    Unavailable,
    check_new_name,
    check_template,
    is_digest,
    limits,
    split_name,
)


class Templates:
    def __init__(self, lifecycle: Lifecycle, parts: HostParts) -> None:
        self._lifecycle = lifecycle
        self._parts = parts
        self._store = parts.templates
        self._store.in_use = self._standing_on
        self._store.creating = lambda: lifecycle.creating
        self._making: set[asyncio.Task[TemplateInfo]] = set()

    def _standing_on(self) -> Counter[str]:
        """How many sessions and waiting guests stand on each template, by its path."""
        rows = [session.row.template_path for session in self._lifecycle.sessions()]
        return Counter([*rows, *self._lifecycle.pool.templates()])

    async def list(self) -> Sequence[TemplateInfo]:
        self._lifecycle.check_open()
        return self._store.list()

    async def get(self, name: str) -> TemplateInfo:
        self._lifecycle.check_open()
        return await self._store.look(check_template(name))

    async def tag(self, name: str, new_name: str) -> TemplateInfo:
        self._lifecycle.check_open()
        told = await self._store.tag(check_template(name), check_new_name(new_name))
        await self._renew(new_name)
        return told

    async def warm(self, name: str, count: int) -> TemplateInfo:
        self._lifecycle.check_open()
        limits.within("count", count, 0, limits.WARM_MAX)
        told = self._store.get(check_template(name))
        await self._lifecycle.pool.keep(_whole(name), count)
        return replace(told, sessions=self._store.get(name).sessions)

    async def _renew(self, name: str) -> None:
        """Guests that wait are those of the template that the name means."""
        self._lifecycle.pool.renew(_whole(name), (await self._store.find(name)).path)

    async def remove(self, name: str) -> TemplateInfo:
        self._lifecycle.check_open()
        return await self._store.remove(check_template(name))

    async def prune(self, budget_bytes: int) -> Sequence[TemplateInfo]:
        self._lifecycle.check_open()
        return await self._store.prune(budget_bytes)

    @asynccontextmanager
    async def make(self, request: TemplateRequest) -> AsyncGenerator[AsyncIterator[TemplateEvent]]:
        self._lifecycle.check_open()
        limits.at_most("templates at once", len(self._making) + 1, limits.TEMPLATES_AT_ONCE_MAX)
        latest: list[TemplateStep] = []
        news = asyncio.Event()

        def tell(step: TemplateStep) -> None:
            latest[:] = [step]  # whoever reads slowly hears of the newest
            news.set()

        task = asyncio.create_task(self._make(request, tell), name="make a template")
        self._making.add(task)
        task.add_done_callback(lambda _task: (self._making.discard(task), news.set()))
        try:
            yield _steps(task, latest, news)
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError, SandlotError):
                await task

    async def _make(self, request: TemplateRequest, tell: Tell) -> TemplateInfo:
        kept = await self._kept(request, tell)
        if request.name:
            await self._renew(request.name)
        return self._store.info(kept)

    async def _kept(self, request: TemplateRequest, tell: Tell) -> Kept:
        match request:
            case TemplateImport():
                return await self._store.maker.import_path(request, tell)
            case TemplatePull():
                return await self._store.puller.pull(request, tell)
            case TemplateSnapshot():
                return await self._from_snapshot(request, tell)

    async def _from_snapshot(self, request: TemplateSnapshot, tell: Tell) -> Kept:
        session = self._lifecycle.find(request.session_id)
        start = session.find_snapshot(request.snapshot)
        if start is None:
            raise SnapshotNotFound(
                f"session {request.session_id} has no snapshot {request.snapshot}",
                next_step="`sandlot log` shows a history",
            )
        if not session.row.template_path:
            raise CapabilityNotSupported(
                f"the runtime {session.row.runtime} has no root of its own", next_step="use the runtime `namespaces`"
            )
        below = Path(session.row.template_path)
        kept = self._store.kept_at(session.row.template_path)
        told = _told(request, kept)
        base = (below, kept.metadata.digest) if kept else None
        async with self._parts.storages[session.row.storage].showing(None, start.point) as shown:
            try:
                fd = await asyncio.to_thread(mount_layers, [*shown.new, below])
            except OSError as error:
                raise Unavailable(f"the snapshot cannot be read: {error.strerror}") from error
            try:
                return await self._store.maker.copy(fd, told, request.name, tell, base)
            finally:
                os.close(fd)

    def is_changing(self) -> bool:
        """Whether one is being made or removed."""
        return bool(self._making) or self._store.maker.lock.locked()

    async def settle(self) -> None:
        """What is half made is given up."""
        for task in tuple(self._making):
            task.cancel()
        if self._making:
            await asyncio.wait(self._making)


def _whole(name: str) -> str:
    return name if is_digest(name) else ":".join(split_name(name))


def _told(request: TemplateSnapshot, kept: Kept | None) -> Metadata:
    """As the request says, or as the template that the session stands on."""
    source = f"snapshot {request.session_id}/{request.snapshot}"
    config: dict[str, Any]
    if request.config is not None:
        config = {name: getattr(request.config, name) for name in TemplateConfig.__dataclass_fields__}
    elif kept is not None:
        config = {name: getattr(kept.metadata, name) for name in TemplateConfig.__dataclass_fields__}
    else:
        config = {"user": DEFAULT_USER}
    told = Metadata(digest="", source=source, created=time.time(), size_bytes=0, entries=0, **config)
    return told.starting(request.start or told.start)


async def _steps(
    task: "asyncio.Task[TemplateInfo]", latest: list[TemplateStep], news: asyncio.Event
) -> AsyncIterator[TemplateEvent]:
    while not task.done():
        await news.wait()
        news.clear()
        while latest:
            yield latest.pop()
    yield await task
