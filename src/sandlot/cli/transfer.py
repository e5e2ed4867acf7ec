"""Copies a file from one side to another, whichever side is where."""

import time
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

from sandlot.model import FileKind, TreeTally
from sandlot.sdk.below import Parts


@dataclass(frozen=True, slots=True)
class Entry:
    name: str  # empty where there is none, as for the top of a tree
    kind: FileKind
    mode: int | None  # permission bits; None: whatever is usual
    size_bytes: int


class Content(Protocol):
    """An open file."""

    @property
    def entry(self) -> Entry: ...

    def __aiter__(self) -> AsyncIterator[bytes]: ...


class Source(Protocol):
    """One file or directory. Its errors are those of the host's `Files`."""

    @property
    def entry(self) -> Entry:
        """As it was when it was looked at."""
        ...

    def read(self) -> AbstractAsyncContextManager[Content]: ...


class Target(Protocol):
    """A directory that takes them."""

    async def write(self, parts: Parts, mode: int | None, content: AsyncIterable[bytes]) -> None:
        """Whole or not at all."""
        ...


@dataclass(slots=True)
class Tally(TreeTally):
    """What was done so far, and since when."""

    began: float = field(default_factory=time.monotonic)

    async def counted(self, content: Content) -> AsyncIterator[bytes]:
        async for piece in content:
            self.size_bytes += len(piece)
            yield piece


async def copy_file(source: Source, target: Target, to: Parts, tally: Tally) -> None:
    async with source.read() as content:
        await target.write(to, content.entry.mode, tally.counted(content))
    tally.files += 1
