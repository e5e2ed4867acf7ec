"""Makes templates: finds out what was given, has it unpacked or copied, and keeps it."""

import asyncio
import os
import stat
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from sandlot.host import failpoints
from sandlot.host.storage.canonical import CANONICAL_ID
from sandlot.host.templates.library import ROOT, Kept, Library
from sandlot.host.templates.metadata import Metadata, check, from_config
from sandlot.host.templates.tree_copy import Copied, TreeCopy
from sandlot.host.templates.unpacker import unpack
from sandlot.host.templates.unpacking.finish import make_ready
from sandlot.host.templates.unpacking.refusal import Bounds, Refused
from sandlot.model import InvalidArgument, TemplateImport, TemplatePull, TemplateStep, Unavailable, limits

_T = TypeVar("_T")
_TELL_EVERY = 256
_OF_LAYOUTS = ("index.json", "oci-layout")
_SAVED = "manifest.json"
Tell = Callable[[TemplateStep], None]


def bounds(free_min: int) -> Bounds:
    return Bounds(
        limits.TEMPLATE_BYTES_MAX,
        limits.TEMPLATE_ENTRIES_MAX,
        limits.TEMPLATE_RATIO_MAX,
        limits.TEMPLATE_DEPTH_MAX,
        free_min,
    )


class Maker:
    """`lock`: the library is changed by one at a time."""

    def __init__(self, library: Library, space_critical: float) -> None:
        self._library = library
        self._space_critical = space_critical
        self.lock = asyncio.Lock()

    async def import_path(self, request: TemplateImport, tell: Tell) -> Kept:
        """Raises InvalidArgument, Unavailable."""
        try:
            fd = os.open(request.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise InvalidArgument(f"{request.path} cannot be read: {error.strerror}") from error
        try:
            kind = os.fstat(fd).st_mode
            if stat.S_ISREG(kind):
                return await self.unpack({"archive": fd}, request, request.reference, request.path, tell)
            if not stat.S_ISDIR(kind):
                raise InvalidArgument(f"{request.path} is neither a file nor a directory")
            with ExitStack() as opened:
                files = _image_files(fd, opened)
                if files:
                    return await self.unpack(files, request, request.reference, request.path, tell)
            told = Metadata("", f"directory {request.path}", time.time(), 0, 0, user="0")
            return await self.copy(fd, told.starting(request.start), request.name, tell)
        finally:
            os.close(fd)

    async def unpack(
        self, files: dict[str, int], request: TemplateImport | TemplatePull, reference: str, source: str, tell: Tell
    ) -> Kept:
        """Raises InvalidArgument, Unavailable."""
        partial = await self._begin()
        try:
            made = await unpack(files, partial / ROOT, reference, self._free_min(partial), tell)
            told = replace(
                from_config(made.config),
                source=source,
                created=time.time(),
                size_bytes=made.size_bytes,
                entries=made.entries,
                left_out=made.left_out,
            )
            told = told.starting(request.start)
            await failpoints.reach("template: unpacked")
            return await self._publish(partial, told.addressed(made.diff_ids), request.name, tell)
        except BaseException:  # given up, then raised again
            await self._give_up(partial)
            raise

    async def copy(
        self, source: int, told: Metadata, name: str, tell: Tell, base: tuple[Path, str] | None = None
    ) -> Kept:
        """`base`: a template whose files the source may show, and its digest. Raises InvalidArgument, Unavailable."""
        check(told)
        partial = await self._begin()
        try:
            made, user = await self._copy(source, partial / ROOT, told, tell, base)
            told = replace(
                told, user=user, size_bytes=made.size_bytes, entries=made.entries, left_out=dict(made.left_out)
            )
            return await self._publish(partial, told.addressed([made.digest]), name, tell)
        except BaseException:  # given up, then raised again
            await self._give_up(partial)
            raise

    async def _copy(
        self, source: int, root: Path, told: Metadata, tell: Tell, base: tuple[Path, str] | None
    ) -> tuple[Copied, str]:
        loop = asyncio.get_running_loop()

        def step(entries: int, size: int) -> None:
            if entries % _TELL_EVERY == 0:
                loop.call_soon_threadsafe(tell, TemplateStep("copying", size, None, entries))

        copy = TreeCopy(source, root, bounds(self._free_min(root)), step)

        def work() -> tuple[Copied, str]:
            try:
                if base is not None:
                    copy.link_from(*base)
                made = copy.run()
                fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    return made, make_ready(fd, told.user, told.cwd, CANONICAL_ID)
                finally:
                    os.close(fd)
            finally:
                copy.close()

        task = asyncio.create_task(asyncio.to_thread(work), name="copy a template")
        try:
            return await asyncio.shield(task)
        except Refused as refused:
            raise InvalidArgument(f"it cannot be a template: {refused}") from refused
        except OSError as error:
            raise Unavailable(f"the template cannot be written: {error.strerror}") from error
        except asyncio.CancelledError:
            copy.cancelled = True
            await asyncio.wait([task])
            raise

    # ---- keeping -----------------------------------------------------------------------------------------------

    async def _begin(self) -> Path:
        return await self._blocking(self._library.begin)

    async def _publish(self, partial: Path, told: Metadata, name: str, tell: Tell) -> Kept:
        tell(TemplateStep("writing to disk", 0, None, told.entries))
        async with self.lock:
            return await self._blocking(self._library.publish, partial, told, name)

    async def _give_up(self, partial: Path) -> None:
        await asyncio.shield(asyncio.create_task(asyncio.to_thread(self._library.give_up, partial), name="give up"))

    async def _blocking(self, work: Callable[..., _T], *arguments: object) -> _T:
        try:
            return await asyncio.to_thread(work, *arguments)
        except OSError as error:
            raise Unavailable(
                f"the template cannot be kept: {error.strerror}", next_step="free space, or look at the disk"
            ) from error

    def _free_min(self, place: Path) -> int:
        """What a host needs to be healthy stays free."""
        found = os.statvfs(place)
        return int(found.f_blocks * found.f_frsize * (1 - self._space_critical))


def _image_files(folder: int, opened: ExitStack) -> dict[str, int]:
    """What an image layout consists of, open; nothing when the directory is none. No link is followed."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    names = set(os.listdir(folder))
    if not (names >= {*_OF_LAYOUTS} or (_SAVED in names and "blobs" in names)):
        return {}
    files: dict[str, int] = {}

    def take(above: int, name: str, path: str) -> None:
        try:
            fd = os.open(name, flags, dir_fd=above)
        except OSError as error:
            raise InvalidArgument(f"{path} of the image cannot be read: {error.strerror}") from error
        opened.callback(os.close, fd)
        if stat.S_ISREG(os.fstat(fd).st_mode):
            files[path] = fd

    for name in sorted(names & {*_OF_LAYOUTS, _SAVED}):
        take(folder, name, name)
    try:
        blobs = os.open("blobs", flags | os.O_DIRECTORY, dir_fd=folder)
        opened.callback(os.close, blobs)
        hashes = os.open("sha256", flags | os.O_DIRECTORY, dir_fd=blobs)
        opened.callback(os.close, hashes)
    except OSError as error:
        raise InvalidArgument(f"the image has no blobs: {error.strerror}") from error
    listed: Sequence[str] = sorted(os.listdir(hashes))
    if len(listed) > limits.TEMPLATE_BLOBS_MAX:
        raise InvalidArgument(f"the image has more than {limits.TEMPLATE_BLOBS_MAX} files", limit="template_blobs")
    for name in listed:
        take(hashes, name, f"blobs/sha256/{name}")
    return files
