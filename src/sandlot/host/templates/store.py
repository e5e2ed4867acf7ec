"""Finds a template by name: the built-in one, which is made on first need, or one of those that were made here."""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from sandlot.host.templates.builtin import ROOT, TemplateBuildError, build, fingerprint
from sandlot.host.templates.library import Kept, Library
from sandlot.host.templates.making import Maker
from sandlot.host.templates.metadata import Metadata
from sandlot.host.templates.pulling import Puller
from sandlot.host.vessels import DEFAULT_USER
from sandlot.model import (
    BUILTIN,
    Conflict,
    InvalidArgument,
    Template,
    TemplateInfo,
    TemplateNotFound,
    Unavailable,
    is_digest,
    limits,
    split_name,
)

_POLL_S = 0.02
InUse = Callable[[], Mapping[str, int]]  # how many sessions stand on each path


class TemplateStore:
    def __init__(
        self, data: Path, progress: Callable[[int], None] | None = None, space_critical: float = limits.SPACE_CRITICAL
    ) -> None:
        self._folder = data / "templates"
        self._progress = progress
        self._building = asyncio.Lock()
        self._builtin: Template | None = None
        self._library = Library(data / "imports")
        self.maker = Maker(self._library, space_critical)
        self.puller = Puller(self.maker, data / "imports" / "blobs")
        # Told by the engine: who stands on what, and who is about to.
        self.in_use: InUse = dict
        self.creating: Callable[[], Collection[str]] = tuple

    async def open(self) -> None:
        """What an earlier engine left half made goes. Raises Unavailable."""
        try:
            await asyncio.to_thread(self._library.open)
            await asyncio.to_thread(self.puller.sweep)
        except OSError as error:
            raise Unavailable(
                f"the templates cannot be read: {error.strerror}", next_step="look at the disk"
            ) from error

    async def find(self, name: str) -> Template:
        """Raises TemplateNotFound, Unavailable when the built-in one cannot be made."""
        if split_name(name)[0] != BUILTIN:
            kept = self._library.find(name)
            self._library.touch(kept)
            return _template(name if is_digest(name) else ":".join(split_name(name)), kept)
        if self._builtin is None:
            async with self._building:
                # One look per engine: a machine that is upgraded meanwhile is seen by the next one.
                self._builtin = self._builtin or await asyncio.to_thread(self._make_builtin)
        return self._builtin

    def at(self, name: str, path: str) -> Template:
        """The one that a session stands on."""
        kept = self._library.at(path)
        return Template(name, "", path) if kept is None else _template(name, kept)

    def holds(self, path: str) -> bool:
        """Whether there is a template at that path, made by an engine of this data directory."""
        if self._library.at(path) is not None:
            return True
        folder, name, root = Path(path).parent.parent, Path(path).parent.name, Path(path).name
        return (folder, root) == (self._folder, ROOT) and name.startswith(f"{BUILTIN}-") and Path(path).is_dir()

    def kept_at(self, path: str) -> Kept | None:
        """One that was made here."""
        return self._library.at(path)

    def kept_of(self, digest: str) -> Kept | None:
        return next((kept for kept in self._library.all() if kept.metadata.digest == digest), None)

    def all_kept(self) -> "Sequence[tuple[Kept, tuple[str, ...]]]":
        """With their names."""
        return [(kept, self._library.names_of(kept.metadata.digest)) for kept in self._library.all()]

    def put_back(self, root: Path, told: Metadata, names: Sequence[str]) -> Kept:
        """One that was made elsewhere, from its files, which are moved. Blocking; raises OSError."""
        partial = self._library.begin()
        try:
            (partial / "root").rmdir()
            root.rename(partial / "root")
            kept = self._library.publish(partial, told, "")
        except BaseException:  # given up, then raised again
            self._library.give_up(partial)
            raise
        for name in names:
            self._library.name(kept, name)
        return kept

    def _make_builtin(self) -> Template:
        mark = fingerprint()
        try:
            made = build(self._folder / f"{BUILTIN}-{mark}", progress=self._progress)
        except TemplateBuildError as error:
            raise Unavailable(error.message, next_step=error.next_step) from error
        return Template(BUILTIN, made.fingerprint, str(made.path / ROOT))

    # ---- those that were made here -----------------------------------------------------------------------------

    def list(self) -> Sequence[TemplateInfo]:
        in_use = self.in_use()
        return [self.info(kept, in_use) for kept in self._library.all()]

    async def look(self, name: str) -> TemplateInfo:
        """Raises TemplateNotFound, and what finding the built-in one raises."""
        if split_name(name)[0] != BUILTIN:
            return self.get(name)
        found = await self.find(BUILTIN)
        made = (await asyncio.to_thread(os.stat, found.path)).st_mtime
        sessions = self.in_use().get(found.path, 0)
        mark = f"{BUILTIN}-{found.fingerprint}"
        return TemplateInfo(
            mark, (BUILTIN,), "the machine's own /usr", made, made, 0, 0, user=DEFAULT_USER, sessions=sessions
        )

    def get(self, name: str) -> TemplateInfo:
        """One that was made here. Raises TemplateNotFound."""
        return self.info(self._library.find(name))

    def info(self, kept: Kept, in_use: Mapping[str, int] | None = None) -> TemplateInfo:
        sessions = (self.in_use() if in_use is None else in_use).get(kept.root, 0)
        return kept.metadata.info(self._library.names_of(kept.metadata.digest), kept.used, sessions)

    async def tag(self, name: str, new_name: str) -> TemplateInfo:
        """Raises TemplateNotFound, Unavailable."""
        async with self._changing():
            kept = self._library.find(name)
            await asyncio.to_thread(self._library.name, kept, new_name)
        return self.info(kept)

    async def remove(self, name: str) -> TemplateInfo:
        """A name of several goes alone; with the last one, or by digest, the template. Raises TemplateNotFound,
        Conflict while a session stands on it, Unavailable."""
        async with self._changing():
            kept = self._library.find(name)
            told = self.info(kept)
            if len(told.names) > 1 and not is_digest(name):
                await asyncio.to_thread(self._library.unname, name)
                return told
            if not await self._remove(kept):
                raise Conflict(
                    f"sessions stand on template {name}: {self.in_use().get(kept.root, 0)}",
                    next_step="destroy them first; `sandlot ls` lists sessions",
                    template=name,
                )
        return told

    async def prune(self, budget_bytes: int) -> Sequence[TemplateInfo]:
        """The least recently used go, those without a name first, until the others fit. What a session stands on stays.
        Raises InvalidArgument, Unavailable."""
        if budget_bytes < 0:
            raise InvalidArgument("a budget is a number of bytes", limit="budget_bytes")
        removed: list[TemplateInfo] = []
        async with self._changing():
            waiting = sorted(
                self._library.all(), key=lambda kept: (bool(self._library.names_of(kept.metadata.digest)), kept.used)
            )
            total = sum(kept.metadata.size_bytes for kept in waiting)
            for kept in waiting:
                if total <= budget_bytes:
                    break
                told = self.info(kept)
                if await self._remove(kept):
                    removed.append(told)
                    total -= told.size_bytes
        return removed

    async def _remove(self, kept: Kept) -> bool:
        """Hidden first: whoever makes a session from now on does not find it, and those who have found it are waited
        for. False when a session stands on it."""
        if self.in_use().get(kept.root):
            return False
        self._library.hide(kept)
        try:
            before = set(self.creating())
            async with asyncio.timeout(limits.REPEAT_DEADLINE_S):
                while before & set(self.creating()):  # noqa: ASYNC110 - many things, each with its own end
                    await asyncio.sleep(_POLL_S)
            if self.in_use().get(kept.root):
                self._library.show(kept)
                return False
        except BaseException as error:  # nothing was removed, then raised again
            self._library.show(kept)
            if isinstance(error, TimeoutError):
                raise Unavailable("sessions are being made all the time", next_step="try again") from None
            raise
        await asyncio.shield(asyncio.create_task(asyncio.to_thread(self._library.remove, kept), name="remove template"))
        return True

    @asynccontextmanager
    async def _changing(self) -> AsyncGenerator[None]:
        async with self.maker.lock:
            try:
                yield
            except OSError as error:
                if isinstance(error, Unavailable | TemplateNotFound):
                    raise
                raise Unavailable(
                    f"templates cannot be changed: {error.strerror}", next_step="look at the disk"
                ) from error


def _template(name: str, kept: Kept) -> Template:
    told = kept.metadata
    return Template(name, told.digest, kept.root, told.envs, told.user, told.cwd, told.start)
