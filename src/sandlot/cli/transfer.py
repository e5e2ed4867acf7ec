"""Copies one side to another, a file or a whole tree, whichever side is where. Knows no paths, only names below one."""

import time
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from typing import Protocol

from sandlot.cli.below import Parts, is_name
from sandlot.model import FileConflict, FileKind, FileNotFound

SKIPPED_TOLD = 100


@dataclass(frozen=True, slots=True)
class Entry:
    name: str
    kind: FileKind
    mode: int | None  # permission bits; None: whatever is usual
    size_bytes: int


class Content(Protocol):
    """An open file."""

    @property
    def entry(self) -> Entry: ...

    def __aiter__(self) -> AsyncIterator[bytes]: ...


class Source(Protocol):
    """One file or directory, and what is below it. Its errors are those of the host's `Files`."""

    @property
    def entry(self) -> Entry:
        """As it was when it was looked at. The name is empty where there is none, as for the top of a tree."""
        ...

    def shown(self, parts: Parts) -> str: ...

    def entries(self, parts: Parts) -> AbstractAsyncContextManager[AsyncIterator[Sequence[Entry]]]: ...

    def read(self, parts: Parts) -> AbstractAsyncContextManager[Content]: ...


class Target(Protocol):
    async def make_directory(self, parts: Parts, mode: int) -> bool:
        """Whether it was made; False when it was there."""
        ...

    async def finish_directory(self, parts: Parts, mode: int) -> None:
        """All that belongs into a directory that was made is there."""
        ...

    async def write(self, parts: Parts, mode: int | None, content: AsyncIterable[bytes]) -> None:
        """Whole or not at all."""
        ...


@dataclass(slots=True)
class Tally:
    """What was done so far."""

    began: float = field(default_factory=time.monotonic)
    files: int = 0
    directories: int = 0
    size_bytes: int = 0
    skipped_count: int = 0
    skipped: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])  # the first ones, and why

    def skip(self, shown: str, why: str) -> None:
        self.skipped_count += 1
        if len(self.skipped) < SKIPPED_TOLD:
            self.skipped.append((shown, why))

    async def counted(self, content: Content) -> AsyncIterator[bytes]:
        async for piece in content:
            self.size_bytes += len(piece)
            yield piece


_WHY = {FileKind.SYMLINK: "a link", FileKind.OTHER: "a pipe, a socket or a device"}


async def copy(source: Source, target: Target, to: Parts, tally: Tally) -> None:
    """Everything that `source` is becomes `to` below the target; directories that are there are filled up."""
    if source.entry.kind is FileKind.FILE:
        await _copy_file(source, (), target, to, tally)
        return
    # A directory stands here twice: to be gone through, and, when it is new, to be finished after all that is in it.
    pending: list[tuple[Parts, int, bool]] = [((), source.entry.mode or 0, False)]
    while pending:
        parts, mode, is_done = pending.pop()
        if is_done:
            await target.finish_directory(to + parts, mode)
            continue
        if to + parts and await target.make_directory(to + parts, mode):
            tally.directories += 1
            pending.append((parts, mode, True))
        await _copy_entries(source, parts, target, to, tally, pending)


async def _copy_entries(
    source: Source, parts: Parts, target: Target, to: Parts, tally: Tally, pending: list[tuple[Parts, int, bool]]
) -> None:
    async with AsyncExitStack() as stack:
        try:
            batches = await stack.enter_async_context(source.entries(parts))
        except (FileNotFound, FileConflict) as error:
            if not parts:
                raise
            tally.skip(source.shown(parts), _lost(error))
            return
        async for batch in batches:
            for entry in batch:
                inner = (*parts, entry.name)
                if not is_name(entry.name):
                    tally.skip(source.shown(inner), "no name of a file")
                elif entry.kind is FileKind.DIRECTORY:
                    pending.append((inner, entry.mode or 0, False))
                elif entry.kind is FileKind.FILE:
                    await _copy_file(source, inner, target, to, tally)
                else:
                    tally.skip(source.shown(inner), _WHY[entry.kind])


async def _copy_file(source: Source, parts: Parts, target: Target, to: Parts, tally: Tally) -> None:
    async with AsyncExitStack() as stack:
        try:
            content = await stack.enter_async_context(source.read(parts))
        except (FileNotFound, FileConflict) as error:
            if not parts:
                raise
            tally.skip(source.shown(parts), _lost(error))
            return
        await target.write(to + parts, content.entry.mode, tally.counted(content))
    tally.files += 1


def _lost(error: FileNotFound | FileConflict) -> str:
    """Something was there a moment ago. Others work in a session meanwhile; that is no reason to stop."""
    return "gone meanwhile" if isinstance(error, FileNotFound) else f"changed meanwhile: {error.message}"
