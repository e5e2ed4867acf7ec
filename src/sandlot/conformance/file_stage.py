"""A session, and a directory in it: where promises of files are tried out."""

import posixpath
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from sandlot.conformance.checks import Broken, Stage, equal
from sandlot.contracts import Host
from sandlot.model import (
    AttributesGet,
    AttributesSet,
    DirectoryMake,
    FileAppend,
    FileChange,
    FileCopy,
    FileFind,
    FileInfo,
    FileLines,
    FileList,
    FileNotFound,
    FileRead,
    FileReplace,
    FileSearch,
    FileStat,
    FileUsage,
    FileWrite,
    Line,
    LinkMake,
    Match,
    SandlotError,
    TreeTally,
    Usage,
)


@dataclass(slots=True)
class FileStage:
    """A session, and a directory in it."""

    stage: Stage
    folder: str

    @property
    def host(self) -> Host:
        return self.stage.host

    @property
    def id(self) -> str:
        return self.stage.session.session_id

    def at(self, name: str) -> str:
        return f"{self.folder}/{name}"

    async def sh(self, script: str) -> str:
        ran = await self.stage.sh(f"cd '{self.folder}' && {script}")
        equal((ran.result.exit_code, ran.stderr), (0, b""))
        return ran.text

    async def write(self, name: str, *pieces: bytes, **options: Any) -> FileInfo:
        return await self.host.write_file(FileWrite(self.id, self.at(name), **options), _pieces(*pieces))

    async def append(self, name: str, *pieces: bytes, **options: Any) -> FileInfo:
        return await self.host.append_file(FileAppend(self.id, self.at(name), **options), _pieces(*pieces))

    async def read(self, name: str, **options: Any) -> bytes:
        async with self.host.read_file(FileRead(self.id, self.at(name), **options)) as stream:
            return b"".join([piece async for piece in stream])

    async def lines(self, name: str, **options: Any) -> tuple[list[Line], int | None]:
        async with self.host.read_lines(FileLines(self.id, self.at(name), **options)) as stream:
            found = [line async for batch in stream for line in batch]
            return found, stream.total

    async def listing(self, name: str = ".", **options: Any) -> list[FileInfo]:
        async with self.host.list_files(FileList(self.id, self.at(name), **options)) as batches:
            return [info async for batch in batches for info in batch]

    async def stat(self, name: str, *, follow: bool = True) -> FileInfo:
        return await self.host.stat_file(FileStat(self.id, self.at(name), follow=follow))

    async def make(self, name: str) -> bool:
        return await self.host.make_directory(DirectoryMake(self.id, self.at(name)))

    async def link(self, name: str, target: str) -> FileInfo:
        return await self.host.make_link(LinkMake(self.id, self.at(name), target=target))

    async def copy(self, name: str, to: str, **options: Any) -> TreeTally:
        return await self.host.copy_file(FileCopy(self.id, self.at(name), to=self.at(to), **options))

    async def replace(self, name: str, old: str, new: str, **options: Any) -> int:
        return await self.host.replace_in_file(FileReplace(self.id, self.at(name), old=old, new=new, **options))

    async def change(self, name: str, **options: Any) -> FileInfo:
        return await self.host.change_file(FileChange(self.id, self.at(name), **options))

    async def attributes(self, name: str) -> dict[str, bytes]:
        return dict(await self.host.get_attributes(AttributesGet(self.id, self.at(name))))

    async def attribute(
        self, name: str, values: Mapping[str, bytes | None], *, replace: bool = False
    ) -> dict[str, bytes]:
        request = AttributesSet(self.id, self.at(name), values=values, replace=replace)
        return dict(await self.host.set_attributes(request))

    async def find(self, pattern: str = "**", name: str = ".", **options: Any) -> list[str]:
        request = FileFind(self.id, self.at(name), pattern=pattern, **options)
        async with self.host.find_files(request) as stream:
            return [posixpath.relpath(info.path, self.at(name)) async for batch in stream for info in batch]

    async def search(self, pattern: str, name: str = ".", **options: Any) -> list[Match]:
        async with self.host.search_files(FileSearch(self.id, self.at(name), pattern=pattern, **options)) as stream:
            return [match async for batch in stream for match in batch]

    async def usage(self, name: str = ".", **options: Any) -> Usage:
        return await self.host.measure_files(FileUsage(self.id, self.at(name), **options))

    async def exists(self, name: str) -> bool:
        with suppress(FileNotFound):
            await self.stat(name, follow=False)
            return True
        return False


async def refused(attempt: Awaitable[object], *errors: type[SandlotError]) -> SandlotError:
    """It is refused with one of these."""
    try:
        await attempt
    except errors as error:
        return error
    raise Broken(f"it was not refused as {' or '.join(error.__name__ for error in errors)}")


async def _pieces(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece
