"""Files of sessions on a host that is elsewhere."""

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from sandlot.model import (
    AttributesGet,
    AttributesSet,
    DirectoryMake,
    FileAppend,
    FileChange,
    FileCopy,
    FileEvent,
    FileFind,
    FileInfo,
    FileLines,
    FileList,
    FileRead,
    FileRemove,
    FileRename,
    FileReplace,
    FileSearch,
    FileStat,
    FileUsage,
    FileWatch,
    FileWrite,
    LinkMake,
    Match,
    SandlotError,
    TreeDownload,
    TreeTally,
    TreeUpload,
    Usage,
    limits,
)
from sandlot.rpc.asking import Asking
from sandlot.rpc.convert import build, from_message, to_message
from sandlot.rpc.gen.sandlot.v1 import files_pb
from sandlot.rpc.messages import PROCEDURES, AnyMessage
from sandlot.rpc.remote import RemoteBatches, RemoteFile, RemoteLines, RemoteTree
from sandlot.rpc.verbs import unpack_answer


class RemoteFiles:
    def __init__(self, ask: Asking) -> None:
        self._ask = ask

    async def replace_in_file(self, request: FileReplace) -> int:
        return await self._ask.value("ReplaceInFile", request)

    async def copy_file(self, request: FileCopy) -> TreeTally:
        return await self._ask.value("CopyFile", request)

    async def change_file(self, request: FileChange) -> FileInfo:
        return await self._ask.value("ChangeFile", request)

    async def make_link(self, request: LinkMake) -> FileInfo:
        return await self._ask.value("MakeLink", request)

    async def get_attributes(self, request: AttributesGet) -> Mapping[str, bytes]:
        return await self._ask.value("GetAttributes", request)

    async def set_attributes(self, request: AttributesSet) -> Mapping[str, bytes]:
        return await self._ask.value("SetAttributes", request)

    async def measure_files(self, request: FileUsage) -> Usage:
        return await self._ask.value("MeasureFiles", request)

    async def stat_file(self, request: FileStat) -> FileInfo:
        return await self._ask.value("StatFile", request)

    async def make_directory(self, request: DirectoryMake) -> bool:
        return await self._ask.value("MakeDirectory", request)

    async def rename_file(self, request: FileRename) -> FileInfo:
        return await self._ask.value("RenameFile", request)

    async def remove_file(self, request: FileRemove) -> None:
        return await self._ask.value("RemoveFile", request)

    @asynccontextmanager
    async def read_file(self, request: FileRead) -> AsyncGenerator[RemoteFile]:
        async with self._ask.stream("ReadFile", to_message(request)) as (first, incoming):
            yield RemoteFile(info_of(first), incoming)

    @asynccontextmanager
    async def read_lines(self, request: FileLines) -> AsyncGenerator[RemoteLines]:
        async with self._ask.stream("ReadLines", to_message(request)) as (first, incoming):
            yield RemoteLines(info_of(first), incoming)

    @asynccontextmanager
    async def list_files(self, request: FileList) -> AsyncGenerator[AsyncIterator[Sequence[FileInfo]]]:
        async with self._ask.stream("ListFiles", to_message(request)) as (_, incoming):
            yield batches(incoming, "files")

    @asynccontextmanager
    async def find_files(self, request: FileFind) -> AsyncGenerator[RemoteBatches[FileInfo]]:
        async with self._ask.stream("FindFiles", to_message(request)) as (_, incoming):
            yield RemoteBatches[FileInfo](incoming, "files")

    @asynccontextmanager
    async def search_files(self, request: FileSearch) -> AsyncGenerator[RemoteBatches[Match]]:
        async with self._ask.stream("SearchFiles", to_message(request)) as (_, incoming):
            yield RemoteBatches[Match](incoming, "matches")

    @asynccontextmanager
    async def watch_files(self, request: FileWatch) -> AsyncGenerator[AsyncIterator[Sequence[FileEvent]]]:
        async with self._ask.resumed("WatchFiles", request, "after") as stream:

            async def told() -> AsyncGenerator[Sequence[FileEvent]]:
                async for message in stream.messages:
                    found: list[FileEvent] = values_of(message, "events")
                    if found:
                        stream.reached(found[-1].offset)
                        yield found

            yield told()

    @asynccontextmanager
    async def download_tree(self, request: TreeDownload) -> AsyncGenerator[RemoteTree]:
        async with self._ask.stream("DownloadTree", to_message(request)) as (_, incoming):
            yield RemoteTree(incoming)

    async def write_file(self, request: FileWrite, content: AsyncIterable[bytes]) -> FileInfo:
        """Small content is sent as one message, which can be sent again; larger content is a stream."""
        pieces, start, is_whole = aiter(content), bytearray(), False
        while len(start) <= limits.PIECE_BYTES and not is_whole:
            piece = await anext(pieces, None)
            is_whole = piece is None
            start += piece or b""
        if is_whole:
            message = build(files_pb.FileWriting, {"request": to_message(request), "data": bytes(start)})
            return unpack_answer(await self._ask.link.ask("PutFile", message))
        return await upload(self._ask, "WriteFile", request, _after(bytes(start), pieces))

    async def append_file(self, request: FileAppend, content: AsyncIterable[bytes]) -> FileInfo:
        return await upload(self._ask, "AppendFile", request, content)

    async def upload_tree(self, request: TreeUpload, content: AsyncIterable[bytes]) -> TreeTally:
        return await upload(self._ask, "UploadTree", request, content)


async def upload(ask: Asking, name: str, request: object, content: AsyncIterable[bytes]) -> Any:
    kind = PROCEDURES[name].request

    async def messages() -> AsyncIterator[AnyMessage]:
        async for piece in content:
            for at in range(0, len(piece), limits.PIECE_BYTES):
                yield kind(data=bytes(piece[at : at + limits.PIECE_BYTES]))

    return unpack_answer(await ask.link.upload(name, build(kind, {"request": to_message(request)}), messages()))


async def batches(incoming: AsyncIterator[AnyMessage], field: str) -> AsyncGenerator[Sequence[Any]]:
    async for message in incoming:
        found = values_of(message, field)
        if found:
            yield found


def values_of(message: AnyMessage, field: str) -> list[Any]:
    return [from_message(one) for one in getattr(message, field)]


def info_of(first: AnyMessage) -> FileInfo:
    info: AnyMessage | None = getattr(first, "info", None)
    if info is None:
        raise SandlotError("the server did not tell what file this is", next_step="report it")
    return from_message(info)


async def _after(start: bytes, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield start
    async for piece in pieces:
        yield piece
