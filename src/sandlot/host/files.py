"""The host's own hands in a session's files: asynchronous verbs over `inside`, each with the rights of one user."""

import asyncio
import errno
import os
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from sandlot.contracts.runtime import Tree
from sandlot.host import inside
from sandlot.host.accounts import TEXT_BYTES_MAX, find_account
from sandlot.host.inside import PIECE_BYTES, Inside, Replacement, WrongKind
from sandlot.host.kernel import Identity, act_as
from sandlot.model import (
    DeadlineExceeded,
    DirectoryMake,
    FileConflict,
    FileInfo,
    FileList,
    FileNotFound,
    FileRead,
    FileRemove,
    FileRename,
    FileStat,
    FileWrite,
    InvalidArgument,
    LimitReached,
    PermissionDenied,
    SandlotError,
    Unavailable,
    limits,
)

_THREADS = 8
_KNOWN_MAX = 4096
_SHOWN_CHARS = 300
_DONE = object()
_T = TypeVar("_T")

_Key = tuple[int, str, tuple[int, ...], tuple[int, ...]]  # whose range, which name, and what the two lists looked like

_MISSING = {errno.ENOENT, errno.ESTALE}
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EMLINK}
_CONFLICTS = {
    errno.EEXIST: "something is there already",
    errno.ENOTEMPTY: "the directory is not empty",
    errno.ENOTDIR: "something above it, or the path itself, is not a directory",
    errno.EISDIR: "it is a directory",
    errno.EBUSY: "it cannot be moved or removed",
    errno.ETXTBSY: "it is a program that is running",
    errno.ELOOP: "too many links, or a link where none may be",
    errno.EAGAIN: "a program of the session holds it, or renames it again and again",
}
_WRONG = {errno.ENAMETOOLONG: "a name of it is too long", errno.EINVAL: "it cannot be used like this"}


@dataclass(frozen=True, slots=True)
class Place:
    """Whose files, seen from where, and touched by whom. Handed to one verb, which closes the tree."""

    tree: Tree
    workspace: str
    user: str  # empty where the runtime has no users


class Desk:
    """Where the files of one session are worked on, for the time of one operation. What was opened for it is closed
    when no thread works at it any more: a number that is closed too early may be another session's a moment later."""

    def __init__(self, place: Place, path: str, known: dict[_Key, Identity]) -> None:
        self.inside = Inside(place.tree, place.workspace)
        self.path = self.inside.locate(path)
        self._first_id = place.tree.first_id
        self._user = place.user
        self._known = known
        self._who: Identity | None = None
        self._open: list[Callable[[], None]] = [self.inside.close]
        self._busy: Future[object] | None = None

    @property
    def has_users(self) -> bool:
        return self._first_id is not None

    def become_user(self) -> None:
        """In the thread that is to work. Raises InvalidArgument, OSError."""
        if self._first_id is None:
            act_as(None)
            return
        self._who = self._who or self._find(self._first_id)
        act_as(self._who)

    def _find(self, first_id: int) -> Identity:
        # Whatever its bits say, the session's own list of users can be read; the guest reads it as root too.
        act_as(Identity(first_id, first_id, (first_id,), powerful=True))
        key = (first_id, self._user, self._look("/etc/passwd"), self._look("/etc/group"))
        found = self._known.get(key)
        if found is None:
            account = find_account(self._user, self._text("/etc/passwd"), self._text("/etc/group"))
            if account is None:
                raise InvalidArgument(
                    f"the session has no user {self._user!r}", next_step="give a name of its /etc/passwd"
                )
            groups = tuple(first_id + group for group in account.groups)
            found = Identity(first_id + account.uid, first_id + account.gid, groups, powerful=account.uid == 0)
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            self._known[key] = found
        return found

    def _look(self, path: str) -> tuple[int, ...]:
        try:
            with self.inside.opened(path, os.O_PATH) as fd:
                found = os.fstat(fd)
        except OSError:
            return ()
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns

    def _text(self, path: str) -> bytes:
        """A list that is missing or no file is an empty one, as it is to the guest."""
        try:
            fd, _found = inside.open_regular(self.inside, path)
        except OSError:
            return b""
        try:
            return os.pread(fd, TEXT_BYTES_MAX, 0)
        finally:
            os.close(fd)

    def keep(self, close: Callable[[], None]) -> None:
        """Something to be closed at the end."""
        self._open.append(close)

    def work(self, job: Future[Any]) -> None:
        self._busy = job

    def leave(self) -> None:
        if self._busy is None or self._busy.done():
            self._close()
        else:  # cancelled or late: the thread closes when it is done
            self._busy.add_done_callback(lambda _job: self._close())

    def _close(self) -> None:
        while self._open:
            self._open.pop()()


class _Stream:
    def __init__(
        self, files: "SessionFiles", desk: Desk, fd: int, info: FileInfo, first: bytes, request: FileRead
    ) -> None:
        self.info = info
        self._files = files
        self._desk = desk
        self._fd = fd
        self._first = first
        self._request = request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        piece, offset = self._first, self._request.offset
        end = limits.FILE_OFFSET_MAX if self._request.length is None else offset + self._request.length
        while piece:
            yield piece
            offset += len(piece)
            # Shorter than asked: the end, unless the file has grown since.
            if offset >= end or (len(piece) < PIECE_BYTES and offset >= self.info.size_bytes):
                return
            piece = await self._files.read_on(self._desk, self._fd, min(PIECE_BYTES, end - offset), offset)


class SessionFiles:
    """The verbs, for any session: each is told its place."""

    def __init__(self) -> None:
        # Threads that act for sessions do nothing else; those of sessions without users of their own stay themselves.
        self._others = ThreadPoolExecutor(_THREADS, thread_name_prefix="sandlot-files")
        self._own = ThreadPoolExecutor(_THREADS, thread_name_prefix="sandlot-own-files")
        self._known: dict[_Key, Identity] = {}

    def close(self) -> None:
        self._others.shutdown(wait=False, cancel_futures=True)
        self._own.shutdown(wait=False, cancel_futures=True)

    # ---- verbs -------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def read(self, place: Place, request: FileRead) -> AsyncGenerator[_Stream]:
        with self._desk(place, request.path) as desk:
            length = PIECE_BYTES if request.length is None else request.length
            fd, info, first = await self._do(desk, lambda: _read_start(desk, request.offset, length))
            yield _Stream(self, desk, fd, info, first, request)

    async def write(self, place: Place, request: FileWrite, content: AsyncIterable[bytes]) -> FileInfo:
        with self._desk(place, request.path) as desk:
            pieces = aiter(content)
            first = await anext(pieces, b"")
            second = await anext(pieces, None)
            if second is None:
                return await self._do(desk, lambda: _begin(desk, request, first).commit())
            new = await self._do(desk, lambda: _begin(desk, request, first))
            await self._do(desk, lambda: new.write(second))
            async for piece in pieces:
                await self._do(desk, partial(new.write, piece))
            return await self._do(desk, new.commit)

    @asynccontextmanager
    async def list(self, place: Place, request: FileList) -> AsyncGenerator[AsyncIterator[list[FileInfo]]]:
        with self._desk(place, request.path) as desk:
            steps = inside.list_files(desk.inside, desk.path, request.depth)
            desk.keep(steps.close)
            # The first one before anyone reads: what is not there is told at the door.
            first = await self._do(desk, lambda: next(steps))

            async def batches() -> AsyncIterator[list[FileInfo]]:
                batch: list[FileInfo] | None = first
                while batch is not None:
                    if batch:
                        yield batch
                    batch = await self._do(desk, lambda: next(steps, None))

            yield batches()

    async def stat(self, place: Place, request: FileStat) -> FileInfo:
        with self._desk(place, request.path) as desk:
            return await self._do(desk, lambda: inside.stat_file(desk.inside, desk.path, follow=request.follow))

    async def make_directory(self, place: Place, request: DirectoryMake) -> bool:
        with self._desk(place, request.path) as desk:
            return await self._do(
                desk, lambda: inside.make_directory(desk.inside, desk.path, request.mode, parents=request.parents)
            )

    async def rename(self, place: Place, request: FileRename) -> FileInfo:
        with self._desk(place, request.path) as desk:
            to = desk.inside.locate(request.to)
            return await self._do(desk, lambda: inside.rename(desk.inside, desk.path, to, overwrite=request.overwrite))

    async def remove(self, place: Place, request: FileRemove) -> None:
        with self._desk(place, request.path) as desk:
            steps = inside.remove(desk.inside, desk.path, recursive=request.recursive)
            desk.keep(steps.close)
            while await self._do(desk, lambda: next(steps, _DONE)) is not _DONE:
                pass

    # ---- how a verb is done ------------------------------------------------------------------------------------

    @contextmanager
    def _desk(self, place: Place, path: str) -> Generator[Desk]:
        desk = Desk(place, path, self._known)
        try:
            yield desk
        finally:
            desk.leave()

    async def _do(self, desk: Desk, work: Callable[[], _T]) -> _T:
        """One blocking step, as the user, in a thread, with a deadline. Raises what went wrong in our own words."""

        def step() -> _T:
            desk.become_user()
            return work()

        return await self.in_thread(desk, self._others if desk.has_users else self._own, step)

    async def read_on(self, desk: Desk, fd: int, length: int, offset: int) -> bytes:
        """More of a file that is open; who we are does not matter for that."""
        return await self._do(desk, lambda: os.pread(fd, length, offset))

    async def in_thread(self, desk: Desk, pool: ThreadPoolExecutor, step: Callable[[], _T]) -> _T:
        job = pool.submit(step)
        desk.work(job)
        try:
            async with asyncio.timeout(limits.FILE_DEADLINE_S):
                return await asyncio.wrap_future(job)
        except SandlotError:
            raise
        except TimeoutError:
            raise DeadlineExceeded(f"{desk.path} was not done in {limits.FILE_DEADLINE_S:g} s") from None
        except OSError as error:
            raise translate(error, desk.path) from error


def _read_start(desk: Desk, offset: int, length: int) -> tuple[int, FileInfo, bytes]:
    fd, found = inside.open_regular(desk.inside, desk.path)
    desk.keep(partial(os.close, fd))
    return fd, desk.inside.info(desk.path, found), os.pread(fd, min(PIECE_BYTES, length), offset)


def _begin(desk: Desk, request: FileWrite, first: bytes) -> Replacement:
    new = Replacement(desk.inside, desk.path, request.mode, parents=request.parents)
    desk.keep(new.close)
    new.write(first)
    return new


def translate(error: OSError, path: str) -> SandlotError:
    """What the kernel said, as an error that callers know."""
    number = error.errno or 0
    shown = path[:_SHOWN_CHARS]
    said = error.strerror or os.strerror(number)
    if number in _MISSING:
        return FileNotFound(f"{shown}: there is no such file or directory", path=path)
    if number == errno.EXDEV:
        return PermissionDenied(
            f"{shown}: leads out of the files of the session",
            next_step="what is no file of it, as in /proc and /dev, can be read by a command there",
            path=path,
        )
    if number in _FORBIDDEN:
        return PermissionDenied(f"{shown}: the user may not do that", next_step="give another user", path=path)
    if isinstance(error, WrongKind):
        return FileConflict(f"{shown}: {said}", path=path)
    if number in _CONFLICTS:
        return FileConflict(f"{shown}: {_CONFLICTS[number]}", path=path)
    if number in _FULL:
        return LimitReached(f"{shown}: {said}", limit=errno.errorcode.get(number, ""), path=path)
    if number in _WRONG:
        return InvalidArgument(f"{shown}: {_WRONG[number]}", path=path)
    return Unavailable(f"{shown}: {said}", path=path)
