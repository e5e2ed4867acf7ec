"""The host's own hands in a session's files: asynchronous verbs over `inside`, each with the rights of one user."""

import os
import posixpath
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from sandlot.host import inside
from sandlot.host.desk import Desk, Hands, Place, printable
from sandlot.host.inside import LARGE_BYTES, PIECE_BYTES
from sandlot.host.packing import Packing, wanted
from sandlot.host.replacement import Replacement
from sandlot.host.unpacking import Unpacking
from sandlot.model import (
    DirectoryMake,
    FileInfo,
    FileList,
    FileRead,
    FileRemove,
    FileRename,
    FileStat,
    FileWrite,
    SandlotError,
    TreeDownload,
    TreeTally,
    TreeUpload,
    limits,
)

_DONE = object()
_T = TypeVar("_T")
_End = TypeVar("_End")


class _Stream:
    def __init__(self, files: "SessionFiles", desk: Desk, request: FileRead, start: "_Start") -> None:
        self.info = start.info
        self._files = files
        self._desk = desk
        self._offset = request.offset
        self._start = start

    async def __aiter__(self) -> AsyncIterator[bytes]:
        piece, offset, start = self._start.first, self._offset, self._start
        while piece:
            yield piece
            offset += len(piece)
            if start.is_end(offset, len(piece)):
                return
            piece = await self._files.read_on(self._desk, start.fd, min(PIECE_BYTES, start.end - offset), offset)


@dataclass(frozen=True, slots=True)
class _TreeStream:
    tally: TreeTally
    pieces: AsyncIterator[bytes]

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self.pieces


class SessionFiles:
    """The verbs, for any session: each is told its place."""

    def __init__(self, hands: Hands) -> None:
        self._hands = hands

    @asynccontextmanager
    async def read(self, place: Place, request: FileRead) -> AsyncGenerator[_Stream]:
        with self._hands.desk(place, request.path) as desk:
            start = await self._hands.do(desk, lambda: _read_start(desk, request))
            yield _Stream(self, desk, request, start)

    async def write(self, place: Place, request: FileWrite, content: AsyncIterable[bytes]) -> FileInfo:
        with self._hands.desk(place, request.path) as desk:
            pieces = aiter(content)
            first = await anext(pieces, b"")
            second = await anext(pieces, None)
            if second is None:
                new, told = await self._hands.do(desk, lambda: _write_whole(desk, request, first))
            else:
                new, told = await self._hands.do(desk, lambda: _begin(desk, request, first)), None
                await self._hands.do(desk, lambda: new.write(second))
                async for piece in pieces:
                    await self._hands.do(desk, partial(new.write, piece))
            while told is None:
                told = await self._hands.do(desk, lambda: finish(desk, new))
            return told

    @asynccontextmanager
    async def list(self, place: Place, request: FileList) -> AsyncGenerator[AsyncIterator[list[FileInfo]]]:
        with self._hands.desk(place, request.path) as desk:
            steps = inside.list_files(desk.inside, desk.path, request.depth)
            desk.keep(steps.close)
            # The first one before anyone reads: what is not there is told at the door.
            first = await self._hands.do(desk, lambda: next(steps))

            async def batches() -> AsyncIterator[list[FileInfo]]:
                batch: list[FileInfo] | None = first
                while batch is not None:
                    if batch:
                        yield batch
                    batch = await self._hands.do(desk, lambda: next_step(desk, steps, None))

            yield batches()

    async def stat(self, place: Place, request: FileStat) -> FileInfo:
        with self._hands.desk(place, request.path) as desk:
            return await self._hands.do(
                desk, lambda: inside.stat_file(desk.inside, desk.path, follow=request.follow), last=True
            )

    async def make_directory(self, place: Place, request: DirectoryMake) -> bool:
        with self._hands.desk(place, request.path) as desk:
            return await self._hands.do(
                desk,
                lambda: inside.make_directory(desk.inside, desk.path, request.mode, parents=request.parents),
                last=True,
            )

    async def rename(self, place: Place, request: FileRename) -> FileInfo:
        with self._hands.desk(place, request.path) as desk:
            to = desk.inside.locate(request.to)
            desk.shown = f"{desk.shown} to {printable(to)}"
            return await self._hands.do(
                desk, lambda: inside.rename(desk.inside, desk.path, to, overwrite=request.overwrite), last=True
            )

    async def remove(self, place: Place, request: FileRemove) -> None:
        with self._hands.desk(place, request.path) as desk:
            steps = inside.remove(desk.inside, desk.path, recursive=request.recursive)
            desk.keep(steps.close)
            while await self._hands.do(desk, lambda: next_step(desk, steps, _DONE)) is not _DONE:
                pass

    async def unpack(self, place: Place, request: TreeUpload, content: AsyncIterable[bytes]) -> TreeTally:
        with self._hands.desk(place, request.path) as desk:
            new = await self._hands.do(desk, lambda: _begin_tree(desk))
            try:
                async for data in content:
                    for at in range(0, len(data), LARGE_BYTES):
                        piece = memoryview(data)[at : at + LARGE_BYTES]
                        await self._hands.do(desk, partial(with_path, desk, new, partial(new.feed, piece)))
                await self._hands.do(desk, partial(with_path, desk, new, new.finish), last=True)
            except SandlotError as error:  # those that came before are there, and that is told
                error.context = {**error.context, "files_done": new.tally.files, "bytes_done": new.tally.size_bytes}
                raise
            return new.tally

    @asynccontextmanager
    async def pack(self, place: Place, request: TreeDownload) -> AsyncGenerator["_TreeStream"]:
        with self._hands.desk(place, request.path) as desk:
            tree = Packing(desk.inside, desk.path, wanted(request.include))
            steps = tree.pieces()
            desk.keep(steps.close)
            await self._hands.do(desk, lambda: next(steps))  # what is not there is told at the door

            async def pieces() -> AsyncIterator[bytes]:
                step = partial(with_path, desk, tree, lambda: next_step(desk, steps, None))
                while (piece := await self._hands.do(desk, step)) is not None:
                    if piece:
                        yield piece

            yield _TreeStream(tree.tally, pieces())

    async def read_on(self, desk: Desk, fd: int, length: int, offset: int) -> bytes:
        """More of a file that is open; who we are does not matter for that."""
        return await self._hands.do(desk, lambda: os.pread(fd, length, offset))


@dataclass(frozen=True, slots=True)
class _Start:
    """A file that was opened, and the first of it."""

    fd: int
    info: FileInfo
    first: bytes
    end: int  # of what was asked for

    def is_end(self, offset: int, length: int) -> bool:
        """Shorter than asked: the end, unless the file has grown since."""
        return offset >= self.end or (length < PIECE_BYTES and offset >= self.info.size_bytes)


def _read_start(desk: Desk, request: FileRead) -> _Start:
    fd, found = inside.open_regular(desk.inside, desk.path)
    desk.keep(partial(os.close, fd))
    offset, most = request.offset, limits.FILE_OFFSET_MAX - request.offset
    end = offset + (most if request.length is None else min(request.length, most))
    # What is not there is not asked for: the kernel does not take every offset.
    first = os.pread(fd, min(PIECE_BYTES, end - offset), offset) if offset < found.st_size else b""
    start = _Start(fd, desk.inside.info(desk.path, found), first, end)
    if not first or start.is_end(offset + len(first), len(first)):
        desk.end()
    return start


def _begin(desk: Desk, request: FileWrite, first: bytes) -> Replacement:
    new = Replacement(desk.inside, desk.path, request.mode, parents=request.parents)
    desk.keep(new.close)
    new.write(first)
    return new


def _write_whole(desk: Desk, request: FileWrite, content: bytes) -> tuple[Replacement, FileInfo | None]:
    new = _begin(desk, request, content)
    return new, finish(desk, new)


def finish(desk: Desk, new: Replacement) -> FileInfo | None:
    new.leave_old = desk.linger
    told = new.commit()
    if told is not None:
        desk.end()
    return told


def _begin_tree(desk: Desk) -> Unpacking:
    new = Unpacking(desk.inside, desk.path)
    desk.keep(new.close)
    return new


class _Tree(Protocol):
    @property
    def at(self) -> str: ...


def with_path(desk: Desk, tree: _Tree, step: Callable[[], _T]) -> _T:
    """An error tells which of many files it is about."""
    try:
        return step()
    except OSError:
        desk.path = posixpath.join(desk.path, tree.at)
        desk.shown = printable(desk.path)
        raise


def next_step(desk: Desk, steps: Iterator[_T], end: _End) -> _T | _End:
    """What comes next, or the end, and then everything is closed."""
    try:
        return next(steps)
    except StopIteration:
        desk.end()
        return end
