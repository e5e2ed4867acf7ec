"""Files of a session as one side of a copy, through the `Files` of any host."""

import os
import posixpath
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from sandlot.cli.below import Parts
from sandlot.cli.transfer import Content, Entry
from sandlot.contracts import Files, FileStream
from sandlot.model import (
    DirectoryMake,
    FileConflict,
    FileInfo,
    FileKind,
    FileList,
    FileNotFound,
    FileRead,
    FileStat,
    FileWrite,
    limits,
)

_MODE_BITS = 0o777


@dataclass(frozen=True, slots=True)
class Place:
    """A path in a session, and who touches it."""

    session_id: str
    path: str
    user: str | None = None

    def below(self, parts: Parts) -> str:
        return posixpath.join(self.path, *parts)

    def __str__(self) -> str:
        return f"{self.session_id}:{self.path}"


async def kind_of(host: Files, place: Place) -> FileKind | None:
    """What is there, with links followed; None for nothing."""
    try:
        return (await host.stat_file(FileStat(place.session_id, place.path, place.user))).kind
    except FileNotFound:
        return None


def _entry(info: FileInfo) -> Entry:
    return Entry(info.name, info.kind, info.mode & _MODE_BITS, info.size_bytes)


class _SessionContent:
    def __init__(self, stream: FileStream) -> None:
        self.entry = _entry(stream.info)
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        # What is written to it meanwhile is left out: a file that grows as fast as it is read would have no end.
        left = self.entry.size_bytes
        async for piece in self._stream:
            if left > 0:
                yield piece[:left]
            left -= len(piece)
            if left <= 0:
                return


class SessionSource:
    def __init__(self, host: Files, place: Place) -> None:
        self._host = host
        self._place = place
        self.entry = Entry("", FileKind.OTHER, None, 0)

    async def open(self) -> None:
        """Raises what `stat_file` raises, and FileConflict for what is no file or directory."""
        place = self._place
        info = await self._host.stat_file(FileStat(place.session_id, place.path, place.user))
        if info.kind not in (FileKind.FILE, FileKind.DIRECTORY):
            raise FileConflict(
                f"{place}: is a pipe, a socket or a device, not a file or a directory",
                next_step=f"a command can read it: `sandlot exec {place.session_id} -- cat PATH`",
                path=place.path,
            )
        name = posixpath.basename(place.path.rstrip("/"))
        self.entry = Entry("" if name in (".", "..") else name, info.kind, info.mode & _MODE_BITS, info.size_bytes)

    def close(self) -> None:
        pass

    def shown(self, parts: Parts) -> str:
        return f"{self._place.session_id}:{self._place.below(parts)}"

    @asynccontextmanager
    async def entries(self, parts: Parts) -> AsyncGenerator[AsyncIterator[Sequence[Entry]]]:
        # One directory at a time: in a listing of a whole tree, one that may not be entered looks like an empty one.
        place = self._place
        async with self._host.list_files(FileList(place.session_id, self._path(parts), place.user)) as batches:

            async def entries() -> AsyncIterator[Sequence[Entry]]:
                async for batch in batches:
                    yield [_entry(info) for info in batch]

            yield entries()

    @asynccontextmanager
    async def read(self, parts: Parts) -> AsyncGenerator[Content]:
        place = self._place
        async with self._host.read_file(FileRead(place.session_id, self._path(parts), place.user)) as stream:
            yield _SessionContent(stream)

    def _path(self, parts: Parts) -> str:
        path = self._place.below(parts)
        if parts and len(os.fsencode(path)) > limits.PATH_BYTES_MAX:
            raise FileConflict(f"{path[:300]}: is too deep to be named")
        return path


class SessionTarget:
    """Below a directory that is there."""

    def __init__(self, host: Files, place: Place) -> None:
        self._host = host
        self._place = place

    def close(self) -> None:
        pass

    async def make_directory(self, parts: Parts, mode: int) -> bool:
        place = self._place
        # With all rights for its owner, who is to put something in; nothing here could give them back later.
        made = DirectoryMake(place.session_id, place.below(parts), place.user, mode=mode | 0o700, parents=False)
        return await self._host.make_directory(made)

    async def finish_directory(self, parts: Parts, mode: int) -> None:
        del parts, mode  # it was made as it stays

    async def write(self, parts: Parts, mode: int | None, content: AsyncIterable[bytes]) -> None:
        place = self._place
        request = FileWrite(place.session_id, place.below(parts), place.user, mode=mode, parents=False)
        await self._host.write_file(request, content)
