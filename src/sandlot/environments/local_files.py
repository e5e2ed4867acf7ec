"""The files that tools need, in a directory of this machine."""

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

from sandlot.environments.searching import Finding, Found, Searching, lines_of
from sandlot.environments.tree import Tree, translate
from sandlot.model import (
    CapabilityNotSupported,
    FileFind,
    FileInfo,
    FileKind,
    FileList,
    FileRead,
    FileRequest,
    FileSearch,
    FileStat,
    FileWrite,
    LimitReached,
    Match,
    SandlotError,
    limits,
)

_PIECE = limits.MIB
_HELD_BYTES = limits.FILE_READ_BYTES_MAX
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Reading:
    """What was asked of a file, already read: whoever leaves early leaves no thread behind that reads on."""

    info: FileInfo
    content: bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self.content:
            yield self.content


class LocalFiles:
    """Everything is done as the user of this process; there is no other."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    @asynccontextmanager
    async def read_file(self, request: FileRead) -> AsyncGenerator[_Reading]:
        def read() -> _Reading:
            fd, info = self._tree.open(request.path)
            with os.fdopen(fd, "rb", buffering=0) as file:
                file.seek(request.offset)
                length = _HELD_BYTES + 1 if request.length is None else request.length
                pieces: list[bytes] = []
                while (left := length - sum(map(len, pieces))) > 0 and (piece := file.read(min(left, _PIECE))):
                    pieces.append(piece)
            return _Reading(info, b"".join(pieces))

        reading = await _do(request, read)
        if len(reading.content) > _HELD_BYTES:
            raise LimitReached(f"{request.path}: more than {_HELD_BYTES} bytes at once", limit="file_read_bytes")
        yield reading

    async def write_file(self, request: FileWrite, content: AsyncIterable[bytes]) -> FileInfo:
        pieces: list[bytes] = []
        size = 0
        async for piece in content:
            pieces.append(piece)
            size += len(piece)
            if size > _HELD_BYTES:
                raise LimitReached(f"{request.path}: more than {_HELD_BYTES} bytes at once", limit="file_read_bytes")

        def write() -> FileInfo:
            if request.parents:
                self._tree.make_parents(request.path)
            return self._tree.replace(request.path, request.mode, lambda fd: _write(fd, pieces))

        return await _do(request, write)

    async def stat_file(self, request: FileStat) -> FileInfo:
        return await _do(request, lambda: self._tree.stat(request.path, follow=request.follow))

    @asynccontextmanager
    async def list_files(self, request: FileList) -> AsyncGenerator[AsyncIterator[Sequence[FileInfo]]]:
        def entries(stop: threading.Event) -> list[FileInfo]:
            found: list[FileInfo] = []
            for _path, info in self._tree.below(request.path, request.depth, lambda _path: not stop.is_set()):
                found.append(info)
                if len(found) > limits.FILES_LISTED_MAX or stop.is_set():
                    break
            return found

        yield _one(await _do_long(request, entries))

    @asynccontextmanager
    async def find_files(self, request: FileFind) -> AsyncGenerator[Found[FileInfo]]:
        def find(stop: threading.Event) -> Finding:
            finding = Finding(request)
            for path, info in self._looked_at(request.path, finding.hidden, stop, lambda _path: True):
                if not finding.take(path, info):
                    break
            return finding

        finding = await _do_long(request, find)
        yield Found(finding.tally, finding.found)

    @asynccontextmanager
    async def search_files(self, request: FileSearch) -> AsyncGenerator[Found[Match]]:
        searching = await _do_long(request, lambda stop: self._search(request, stop))
        yield Found(searching.tally, searching.found)

    def _search(self, request: FileSearch, stop: threading.Event) -> Searching:
        searching = Searching(request)
        top = self._tree.stat(request.path)
        if top.kind is not FileKind.DIRECTORY:
            searching.tally.entries += 1
            searching.take(top.path, self._lines(request.path, stop))
            return searching
        for path, info in self._looked_at(request.path, request.hidden, stop, searching.enters):
            if info.kind is not FileKind.FILE or not searching.wants(path):
                continue
            try:
                searching.take(info.path, self._lines(info.path, stop))
            except OSError:
                searching.tally.unreadable += 1
            if searching.is_enough:
                break
        return searching

    def _looked_at(
        self, path: str, hidden: bool, stop: threading.Event, enters: Callable[[str], bool]
    ) -> Iterator[tuple[str, FileInfo]]:
        def may_enter(inner: str) -> bool:
            return not stop.is_set() and (hidden or not inner.rpartition("/")[2].startswith(".")) and enters(inner)

        for inner, info in self._tree.below(path, limits.FILE_DEPTH_MAX, may_enter):
            if stop.is_set():
                return
            if hidden or not info.name.startswith("."):
                yield inner, info

    def _lines(self, path: str, stop: threading.Event) -> Iterator[bytes]:
        fd, _info = self._tree.open(path)

        def pieces() -> Iterator[bytes]:
            while not stop.is_set() and (piece := os.read(fd, _PIECE)):
                yield piece

        try:
            yield from lines_of(pieces())
        finally:
            os.close(fd)


def _write(fd: int, pieces: Sequence[bytes]) -> None:
    for piece in pieces:
        left = memoryview(piece)
        while left:
            left = left[os.write(fd, left) :]


async def _one(found: Sequence[FileInfo]) -> AsyncIterator[Sequence[FileInfo]]:
    if found:
        yield found


async def _do(request: FileRequest, work: Callable[[], _T]) -> _T:
    if request.user is not None:
        raise CapabilityNotSupported(
            "there are no other users here", next_step="leave the user out", capability="users"
        )
    try:
        return await asyncio.to_thread(work)
    except OSError as error:
        if isinstance(error, SandlotError):
            raise
        raise translate(error, request.path) from error


async def _do_long(request: FileRequest, work: Callable[[threading.Event], _T]) -> _T:
    """The thread ends soon when nobody waits for it any more."""
    stop = threading.Event()
    try:
        return await _do(request, lambda: work(stop))
    finally:
        stop.set()
