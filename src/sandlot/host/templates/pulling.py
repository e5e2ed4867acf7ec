"""A template from a registry: everything is fetched first, and is then an image like any other."""

import asyncio
import os
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TypeVar

from sandlot.host.templates.library import Kept
from sandlot.host.templates.making import Maker, Tell
from sandlot.host.templates.registry import Registry, as_layout, parse_reference, parts_of, read_credentials
from sandlot.host.templates.unpacking.child import PLATFORM
from sandlot.model import SandlotError, TemplatePull, TemplateStep, Unavailable

_T = TypeVar("_T")
_KEPT_S = 24 * 3600.0  # what a broken transfer left, for whoever tries again


class Puller:
    def __init__(self, maker: Maker, folder: Path) -> None:
        self._maker = maker
        self._folder = folder
        self._at_work: set[str] = set()  # digests: the same part is fetched once at a time
        self._changed = asyncio.Condition()

    def sweep(self) -> None:
        """Blocking: what nobody came back for goes."""
        with suppress(FileNotFoundError):
            for path in tuple(self._folder.iterdir()):
                if time.time() - path.stat().st_mtime > _KEPT_S:
                    path.unlink(missing_ok=True)

    async def pull(self, request: TemplatePull, tell: Tell) -> Kept:
        """Raises InvalidArgument, NotFound, PermissionDenied, Unavailable."""
        reference = parse_reference(request.reference)
        credentials = read_credentials(request.auth_file, reference.origin) if request.auth_file else None
        registry = await asyncio.to_thread(Registry, reference, credentials, insecure=request.insecure)
        manifest, data = await self._work(registry, lambda: registry.manifest(PLATFORM))
        parts = parts_of(manifest)
        names = {digest for digest, _size in parts}
        async with self._changed:
            await self._changed.wait_for(lambda: not names & self._at_work)
            self._at_work |= names
        try:
            await self._fetch(registry, parts, tell)
            with ExitStack() as opened:
                blobs: dict[str, int] = {}
                for digest in names:
                    blobs[digest] = os.open(self._path(digest), os.O_RDONLY | os.O_CLOEXEC)
                    opened.callback(os.close, blobs[digest])
                files = as_layout(data, blobs)
                for path in files.keys() - {f"blobs/sha256/{digest[7:]}" for digest in names}:
                    opened.callback(os.close, files[path])
                kept = await self._maker.unpack(files, request, "", request.reference, tell)
            for digest in names:
                self._path(digest).unlink(missing_ok=True)
            return kept
        finally:
            async with self._changed:
                self._at_work -= names
                self._changed.notify_all()

    def _path(self, digest: str) -> Path:
        return self._folder / digest.removeprefix("sha256:")

    async def _fetch(self, registry: Registry, parts: list[tuple[str, int]], tell: Tell) -> None:
        total = sum(size for _digest, size in parts)
        lock, done = threading.Lock(), 0
        loop = asyncio.get_running_loop()

        def on_bytes(count: int) -> None:
            nonlocal done
            with lock:
                done += count
            loop.call_soon_threadsafe(tell, TemplateStep("downloading", min(done, total), total))

        def work() -> None:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for digest, size in parts:
                registry.fetch(digest, size, self._path(digest), on_bytes)

        await self._work(registry, work)

    async def _work(self, registry: Registry, work: Callable[[], _T]) -> _T:
        task = asyncio.create_task(asyncio.to_thread(work), name="fetch an image")
        try:
            return await asyncio.shield(task)
        except SandlotError:
            raise
        except OSError as error:
            raise Unavailable(
                f"the image cannot be fetched: {error.strerror or error}", next_step="try again"
            ) from error
        except asyncio.CancelledError:
            registry.cancelled = True
            await asyncio.wait([task])
            raise
