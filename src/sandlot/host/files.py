"""The host's own hands in a session's files: asynchronous verbs over `inside`, each with the rights of one user."""

import asyncio
import errno
import os
import posixpath
import threading
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from sandlot.contracts.runtime import Tree
from sandlot.host import inside
from sandlot.host.accounts import TEXT_BYTES_MAX, find_account
from sandlot.host.inside import PIECE_BYTES, Inside, WrongKind
from sandlot.host.kernel import Identity, act_as, serve_sessions
from sandlot.host.packing import Packing, wanted
from sandlot.host.replacement import Replacement
from sandlot.host.unpacking import Unpacking
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
    InvalidState,
    LimitReached,
    PermissionDenied,
    SandlotError,
    TreeDownload,
    TreeTally,
    TreeUpload,
    Unavailable,
    limits,
)

_THREADS = 8
_KNOWN_MAX = 4096
_SHOWN_CHARS = 300
_CLOSING = "the engine is closing"
_DONE = object()
_T = TypeVar("_T")
_End = TypeVar("_End")

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
    over: Callable[[], None] | None = None  # called when nothing works at the files any more, in any thread


class Desk:
    """Where the files of one session are worked on, for the time of one operation. What was opened for it is closed
    when it was left and no thread works at it any more, and then nobody can begin: a number that is used after it was
    closed may be another session's by then."""

    def __init__(self, place: Place, path: str, known: dict[_Key, Identity]) -> None:
        self.inside = Inside(place.tree, place.workspace)
        self._open = ExitStack()
        if place.over:
            self._open.callback(place.over)
        self._open.callback(self.inside.close)
        self.path = self._locate(path)
        self.shown = _printable(self.path)  # in errors
        self._first_id = place.tree.first_id
        self._user = place.user
        self._known = known
        self._who: Identity | None = None
        self._lock = threading.Lock()
        self._at_work = 0
        self._left = False

    def _locate(self, path: str) -> str:
        try:
            return self.inside.locate(path)
        except BaseException:  # nobody gets this desk, so nobody would leave it
            self.close()
            raise

    @property
    def has_users(self) -> bool:
        return self._first_id is not None

    def work(self, step: Callable[[], _T], *, last: bool = False) -> _T:
        """In a thread, as the user; after the last step everything is closed. Raises InvalidState when it was left."""
        with self._lock:
            if self._left:
                raise InvalidState(f"{self.shown} is read no more", next_step="read within the context that opened it")
            self._at_work += 1
            self._left = last
        try:
            self._become_user()
            return step()
        finally:
            with self._lock:
                self._at_work -= 1
                over = self._left and not self._at_work
            if over:
                self.close()

    def end(self) -> None:
        """Within a step: it is the last."""
        with self._lock:
            self._left = True

    def leave(self) -> bool:
        """Nobody can begin from now on. Whether there is something to close; a thread at work closes it itself."""
        with self._lock:
            was_left, self._left = self._left, True
            return not was_left and not self._at_work

    def close_as_user(self) -> None:
        """In a thread. Whoever made something away from its place removes it; who is not known yet has made nothing."""
        with suppress(OSError):
            act_as(self._who)
        self.close()

    def close(self) -> None:
        with suppress(OSError, RuntimeError):  # each is tried; the loop that waits may be closed
            self._open.close()

    def keep(self, close: Callable[[], None]) -> None:
        """Something to be closed at the end."""
        self._open.callback(close)

    def _become_user(self) -> None:
        """In the thread that is to work. Raises InvalidArgument, Unavailable."""
        try:
            if self._first_id is None:
                act_as(None)
                return
            self._who = self._who or self._find(self._first_id)
            act_as(self._who)
        except OSError as error:
            raise Unavailable(f"the engine cannot act for the session: {error.strerror}") from error

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
            if all(key[2:]):  # a list that was not seen is not known again
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

    def __init__(self) -> None:
        # Threads that act for sessions do nothing else; those of sessions without users of their own stay themselves.
        self._others = ThreadPoolExecutor(_THREADS, "sandlot-files", serve_sessions)
        self._own = ThreadPoolExecutor(_THREADS, "sandlot-own-files", serve_sessions)
        self._known: dict[_Key, Identity] = {}

    def close(self) -> None:
        self._others.shutdown(wait=False, cancel_futures=True)
        self._own.shutdown(wait=False, cancel_futures=True)

    # ---- verbs -------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def read(self, place: Place, request: FileRead) -> AsyncGenerator[_Stream]:
        with self._desk(place, request.path) as desk:
            start = await self._do(desk, lambda: _read_start(desk, request))
            yield _Stream(self, desk, request, start)

    async def write(self, place: Place, request: FileWrite, content: AsyncIterable[bytes]) -> FileInfo:
        with self._desk(place, request.path) as desk:
            pieces = aiter(content)
            first = await anext(pieces, b"")
            second = await anext(pieces, None)
            if second is None:
                new, told = await self._do(desk, lambda: _write_whole(desk, request, first))
            else:
                new, told = await self._do(desk, lambda: _begin(desk, request, first)), None
                await self._do(desk, lambda: new.write(second))
                async for piece in pieces:
                    await self._do(desk, partial(new.write, piece))
            while told is None:
                told = await self._do(desk, lambda: _finish(desk, new))
            return told

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
                    batch = await self._do(desk, lambda: _next(desk, steps, None))

            yield batches()

    async def stat(self, place: Place, request: FileStat) -> FileInfo:
        with self._desk(place, request.path) as desk:
            return await self._do(
                desk, lambda: inside.stat_file(desk.inside, desk.path, follow=request.follow), last=True
            )

    async def make_directory(self, place: Place, request: DirectoryMake) -> bool:
        with self._desk(place, request.path) as desk:
            return await self._do(
                desk,
                lambda: inside.make_directory(desk.inside, desk.path, request.mode, parents=request.parents),
                last=True,
            )

    async def rename(self, place: Place, request: FileRename) -> FileInfo:
        with self._desk(place, request.path) as desk:
            to = desk.inside.locate(request.to)
            desk.shown = f"{desk.shown} to {_printable(to)}"
            return await self._do(
                desk, lambda: inside.rename(desk.inside, desk.path, to, overwrite=request.overwrite), last=True
            )

    async def remove(self, place: Place, request: FileRemove) -> None:
        with self._desk(place, request.path) as desk:
            steps = inside.remove(desk.inside, desk.path, recursive=request.recursive)
            desk.keep(steps.close)
            while await self._do(desk, lambda: _next(desk, steps, _DONE)) is not _DONE:
                pass

    async def unpack(self, place: Place, request: TreeUpload, content: AsyncIterable[bytes]) -> TreeTally:
        with self._desk(place, request.path) as desk:
            new = await self._do(desk, lambda: _begin_tree(desk))
            try:
                async for data in content:
                    for at in range(0, len(data), PIECE_BYTES):
                        piece = data[at : at + PIECE_BYTES]
                        await self._do(desk, partial(_with_path, desk, new, partial(new.feed, piece)))
                await self._do(desk, partial(_with_path, desk, new, new.finish), last=True)
            except SandlotError as error:  # those that came before are there, and that is told
                error.context = {**error.context, "files_done": new.tally.files, "bytes_done": new.tally.size_bytes}
                raise
            return new.tally

    @asynccontextmanager
    async def pack(self, place: Place, request: TreeDownload) -> AsyncGenerator["_TreeStream"]:
        with self._desk(place, request.path) as desk:
            tree = Packing(desk.inside, desk.path, wanted(request.include))
            steps = tree.pieces()
            desk.keep(steps.close)
            await self._do(desk, lambda: next(steps))  # what is not there is told at the door

            async def pieces() -> AsyncIterator[bytes]:
                step = partial(_with_path, desk, tree, lambda: _next(desk, steps, None))
                while (piece := await self._do(desk, step)) is not None:
                    if piece:
                        yield piece

            yield _TreeStream(tree.tally, pieces())

    # ---- how a verb is done ------------------------------------------------------------------------------------

    @contextmanager
    def _desk(self, place: Place, path: str) -> Generator[Desk]:
        desk = Desk(place, path, self._known)
        try:
            yield desk
        finally:
            if desk.leave():
                self._close(desk)

    def _close(self, desk: Desk) -> None:
        """Not on the loop: the last one who closes a large file that was removed, or a root that was, waits for it."""

        def close_here(job: Future[None]) -> None:
            if job.cancelled():
                desk.close()

        try:
            self._pool(desk).submit(desk.close_as_user).add_done_callback(close_here)
        except RuntimeError:  # the engine is closing
            desk.close()

    def _pool(self, desk: Desk) -> ThreadPoolExecutor:
        return self._others if desk.has_users else self._own

    async def _do(self, desk: Desk, step: Callable[[], _T], *, last: bool = False) -> _T:
        """One blocking step, as the user, in a thread, with a deadline. Raises what went wrong in our own words."""
        try:
            job = self._pool(desk).submit(desk.work, step, last=last)
        except RuntimeError:
            raise Unavailable(_CLOSING) from None
        try:
            async with asyncio.timeout(limits.FILE_DEADLINE_S):
                return await asyncio.wrap_future(job)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise Unavailable(_CLOSING) from None  # nobody asked for it but the end of the pool
        except SandlotError:
            raise
        except TimeoutError:
            raise DeadlineExceeded(f"{desk.shown} was not done in {limits.FILE_DEADLINE_S:g} s") from None
        except OSError as error:
            raise translate(error, desk.path, desk.shown) from error

    async def read_on(self, desk: Desk, fd: int, length: int, offset: int) -> bytes:
        """More of a file that is open; who we are does not matter for that."""
        return await self._do(desk, lambda: os.pread(fd, length, offset))


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
    return new, _finish(desk, new)


def _finish(desk: Desk, new: Replacement) -> FileInfo | None:
    told = new.commit()
    if told is not None:
        desk.end()
    return told


def _begin_tree(desk: Desk) -> Unpacking:
    new = Unpacking(desk.inside, desk.path)
    desk.keep(new.close)
    return new


def _with_path(desk: Desk, tree: Packing | Unpacking, step: Callable[[], _T]) -> _T:
    """An error tells which of many files it is about."""
    try:
        return step()
    except OSError:
        desk.path = posixpath.join(desk.path, tree.at)
        desk.shown = _printable(desk.path)
        raise


def _next(desk: Desk, steps: Iterator[_T], end: _End) -> _T | _End:
    """What comes next, or the end, and then everything is closed."""
    try:
        return next(steps)
    except StopIteration:
        desk.end()
        return end


def _printable(path: str) -> str:
    """A session chooses its names; those who read an error have a terminal."""
    shown = path[:_SHOWN_CHARS]
    return shown if shown.isprintable() else shown.encode("unicode_escape").decode()


def translate(error: OSError, path: str, shown: str) -> SandlotError:
    """What the kernel said, as an error that callers know."""
    number = error.errno or 0
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
