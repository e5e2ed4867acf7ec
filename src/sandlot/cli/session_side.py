"""Files of a session as one side of a copy, through the `Files` of any host."""

import posixpath
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from sandlot.cli.transfer import Content, Entry
from sandlot.contracts import Files, FileStream
from sandlot.model import (
    FileConflict,
    FileInfo,
    FileKind,
    FileNotFound,
    FileRead,
    FileStat,
    FileWrite,
)
from sandlot.sdk.below import Parts

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
        self.place = place
        self.entry = Entry("", FileKind.OTHER, None, 0)

    async def open(self) -> None:
        """Raises what `stat_file` raises, and FileConflict for what is no file or directory."""
        place = self.place
        info = await self._host.stat_file(FileStat(place.session_id, place.path, place.user))
        if info.kind not in (FileKind.FILE, FileKind.DIRECTORY):
            raise FileConflict(
                f"{place}: is a pipe, a socket or a device, not a file or a directory",
                next_step=f"a command can read it: `sandlot exec {place.session_id} -- cat PATH`",
                path=place.path,
            )
        name = posixpath.basename(place.path.rstrip("/"))
        self.entry = Entry("" if name in (".", "..") else name, info.kind, info.mode & _MODE_BITS, info.size_bytes)

    @asynccontextmanager
    async def read(self) -> AsyncGenerator[Content]:
        place = self.place
        async with self._host.read_file(FileRead(place.session_id, place.path, place.user)) as stream:
            yield _SessionContent(stream)


class SessionTarget:
    """Below a directory that is there."""

    def __init__(self, host: Files, place: Place) -> None:
        self._host = host
        self.place = place

    async def write(self, parts: Parts, mode: int | None, content: AsyncIterable[bytes]) -> None:
        place = self.place
        request = FileWrite(place.session_id, place.below(parts), place.user, mode=mode, parents=False)
        await self._host.write_file(request, content)
