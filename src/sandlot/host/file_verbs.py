"""The verbs of files as the waist has them: each finds its session, waits where it must, and works at its files."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from sandlot.contracts.files import FileStream, FoundStream, LineStream, TreeStream
from sandlot.contracts.runtime import Runtime
from sandlot.host.asides import Asides
from sandlot.host.desk import Hands, Place
from sandlot.host.file_edits import FileEdits
from sandlot.host.file_searches import FileSearches
from sandlot.host.file_watches import FileWatches
from sandlot.host.files import SessionFiles
from sandlot.host.replacement import finish_left
from sandlot.host.session import Session
from sandlot.model import (
    AttributesGet,
    AttributesSet,
    DirectoryMake,
    FileAppend,
    FileChange,
    FileConflict,
    FileCopy,
    FileEvent,
    FileFind,
    FileInfo,
    FileLines,
    FileList,
    FileNotFound,
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
    InvalidArgument,
    LimitReached,
    LinkMake,
    Match,
    PermissionDenied,
    SandlotError,
    SessionState,
    TreeDownload,
    TreeTally,
    TreeUpload,
    Unavailable,
    Usage,
)

# Whoever works in the session has changed what is there: then it is his.
_NOT_THERE = (FileNotFound, FileConflict, PermissionDenied, InvalidArgument, LimitReached)


class FileVerbs:
    def __init__(
        self,
        find: Callable[[str], Session],
        ready: Callable[[Session], Awaitable[None]],
        runtimes: Mapping[str, Runtime],
        scout: Path,
        asides: Asides,
    ) -> None:
        self._find = find
        self._ready = ready  # wakes a session that rests
        self._runtimes = runtimes
        self._asides = asides
        self._righting = asyncio.Lock()
        self._hands = Hands()
        self._files = SessionFiles(self._hands)
        self._edits = FileEdits(self._hands)
        self._searches = FileSearches(self._hands, scout)
        self._watches = FileWatches(self._hands)

    async def open(self) -> None:
        """Raises Unavailable."""
        try:
            await asyncio.to_thread(self._asides.open)
        except OSError as error:
            raise Unavailable(f"the notes of files cannot be read: {error.strerror}") from error
        self._hands.open()

    def close(self) -> None:
        self._watches.close()
        self._hands.close()
        self._asides.close()

    # ---- what an engine left that died -------------------------------------------------------------------------

    async def put_right(self) -> None:
        """In all sessions where that can be done now. In the others it is done when they are used again."""
        for session_id in self._asides.sessions():
            try:
                session = self._find(session_id)
            except SandlotError:
                self._asides.settle(session_id)  # it is gone, with all its files
                continue
            with suppress(SandlotError):
                await self.put_right_in(session)

    async def put_right_in(self, session: Session) -> None:
        """What was on the way to its place is taken away; what was being copied is copied whole. Raises what the state
        of the session forbids."""
        session_id = session.row.session_id
        async with self._righting:
            notes = self._asides.left(session_id)
            for note in notes.values():
                async with self._placed_for_writing(session, note.user or None) as place:
                    with self._hands.desk(place, note.folder) as desk, suppress(*_NOT_THERE):
                        steps = finish_left(desk.inside, note)
                        desk.keep(steps.close)
                        while await self._hands.do(desk, partial(next, steps, desk)) is not desk:
                            pass
            self._asides.settle(session_id)

    # ---- the verbs ---------------------------------------------------------------------------------------------

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
        if self._asides.left(request.session_id):
            await self.put_right_in(session)
        async with self._placed_for_writing(session, request.user) as place:
            yield place

    @asynccontextmanager
    async def _placed_for_writing(self, session: Session, user: str | None) -> AsyncGenerator[Place]:
        over = await session.gate.begin_writing()
        try:
            place = replace(self._place(session, user), over=over)
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
        if self._asides.left(request.session_id):
            await self.put_right_in(session)
        with session.in_use():
            yield self._place(session, request.user)

    def _place(self, session: Session, user: str | None) -> Place:
        return replace(session.open_files(self._runtimes[session.row.runtime], user), asides=self._asides)
