"""The verbs of files as the waist has them: each finds its session, waits where it must, and works at its files."""

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

from sandlot.contracts.files import FileStream, FoundStream, LineStream, TreeStream
from sandlot.contracts.runtime import Runtime
from sandlot.host.desk import Hands, Place
from sandlot.host.file_edits import FileEdits
from sandlot.host.file_searches import FileSearches
from sandlot.host.file_watches import FileWatches
from sandlot.host.files import SessionFiles
from sandlot.host.session import Session
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
    FileRequest,
    FileSearch,
    FileStat,
    FileUsage,
    FileWatch,
    FileWrite,
    LinkMake,
    Match,
    SessionState,
    TreeDownload,
    TreeTally,
    TreeUpload,
    Usage,
)


class FileVerbs:
    def __init__(
        self,
        find: Callable[[str], Session],
        ready: Callable[[Session], Awaitable[None]],
        runtimes: Mapping[str, Runtime],
        scout: Path,
    ) -> None:
        self._find = find
        self._ready = ready  # wakes a session that rests
        self._runtimes = runtimes
        self._hands = Hands()
        self._files = SessionFiles(self._hands)
        self._edits = FileEdits(self._hands)
        self._searches = FileSearches(self._hands, scout)
        self._watches = FileWatches(self._hands)

    def close(self) -> None:
        self._watches.close()
        self._hands.close()

    @asynccontextmanager
    async def read_file(self, request: FileRead) -> AsyncGenerator[FileStream]:
        async with self._reaching(request) as place, self._files.read(place, request) as stream:
            yield stream

    async def write_file(self, request: FileWrite, content: AsyncIterable[bytes]) -> FileInfo:
        async with self._writing(request) as place:
            return await self._files.write(place, request, content)

    async def append_file(self, request: FileAppend, content: AsyncIterable[bytes]) -> FileInfo:
        async with self._writing(request) as place:
            return await self._edits.append(place, request, content)

    @asynccontextmanager
    async def read_lines(self, request: FileLines) -> AsyncGenerator[LineStream]:
        async with self._reaching(request) as place, self._edits.lines(place, request) as stream:
            yield stream

    async def replace_in_file(self, request: FileReplace) -> int:
        async with self._writing(request) as place:
            return await self._edits.replace(place, request)

    async def copy_file(self, request: FileCopy) -> TreeTally:
        async with self._writing(request) as place:
            return await self._edits.copy(place, request)

    async def change_file(self, request: FileChange) -> FileInfo:
        async with self._writing(request) as place:
            return await self._edits.change(place, request)

    async def make_link(self, request: LinkMake) -> FileInfo:
        async with self._writing(request) as place:
            return await self._edits.make_link(place, request)

    async def get_attributes(self, request: AttributesGet) -> Mapping[str, bytes]:
        async with self._reaching(request) as place:
            return await self._edits.get_attributes(place, request)

    async def set_attributes(self, request: AttributesSet) -> Mapping[str, bytes]:
        async with self._writing(request) as place:
            return await self._edits.set_attributes(place, request)

    @asynccontextmanager
    async def list_files(self, request: FileList) -> AsyncGenerator[AsyncIterator[Sequence[FileInfo]]]:
        files = self._searches if request.ordered else self._files
        async with self._reaching(request) as place, files.list(place, request) as batches:
            yield batches

    @asynccontextmanager
    async def find_files(self, request: FileFind) -> AsyncGenerator[FoundStream[FileInfo]]:
        async with self._reaching(request) as place, self._searches.find(place, request) as stream:
            yield stream

    @asynccontextmanager
    async def search_files(self, request: FileSearch) -> AsyncGenerator[FoundStream[Match]]:
        async with self._reaching(request) as place, self._searches.search(place, request) as stream:
            yield stream

    @asynccontextmanager
    async def watch_files(self, request: FileWatch) -> AsyncGenerator[AsyncIterator[Sequence[FileEvent]]]:
        def stands_on() -> object:
            session = self._find(request.session_id)
            return session.volume, session.guest

        def again() -> Place:
            return self._place(self._find(request.session_id), request.user)

        async with AsyncExitStack() as stack:
            async with self._reaching(request) as place:
                watching = self._watches.watch(place, request, stands_on, again)
                events = await stack.enter_async_context(watching)
            yield events

    async def measure_files(self, request: FileUsage) -> Usage:
        async with self._reaching(request) as place:
            return await self._searches.usage(place, request)

    async def stat_file(self, request: FileStat) -> FileInfo:
        async with self._reaching(request) as place:
            return await self._files.stat(place, request)

    async def make_directory(self, request: DirectoryMake) -> bool:
        async with self._writing(request) as place:
            return await self._files.make_directory(place, request)

    async def rename_file(self, request: FileRename) -> FileInfo:
        async with self._writing(request) as place:
            return await self._files.rename(place, request)

    async def remove_file(self, request: FileRemove) -> None:
        async with self._writing(request) as place:
            await self._files.remove(place, request)

    async def upload_tree(self, request: TreeUpload, content: AsyncIterable[bytes]) -> TreeTally:
        async with self._writing(request) as place:
            return await self._files.unpack(place, request, content)

    @asynccontextmanager
    async def download_tree(self, request: TreeDownload) -> AsyncGenerator[TreeStream]:
        async with self._reaching(request) as place, self._files.pack(place, request) as stream:
            yield stream

    @asynccontextmanager
    async def _writing(self, request: FileRequest) -> AsyncGenerator[Place]:
        """A root that is being closed must have no writer, nor a thread that its caller did not wait for."""
        session = self._find(request.session_id)
        await self._ready(session)
        over = await session.gate.begin_writing()
        try:
            place = replace(self._place(session, request.user), over=over)
        except BaseException:  # nothing was begun; then raised again
            over()
            raise
        with session.in_use():
            yield place

    @asynccontextmanager
    async def _reaching(self, request: FileRequest) -> AsyncGenerator[Place]:
        session = self._find(request.session_id)
        if session.row.state is SessionState.PAUSED:
            await self._ready(session)
        with session.in_use():
            yield self._place(session, request.user)

    def _place(self, session: Session, user: str | None) -> Place:
        return session.open_files(self._runtimes[session.row.runtime], user)
