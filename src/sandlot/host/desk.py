"""Where the files of one session are worked on: in threads that act as one user, step by step, each with a deadline."""

import asyncio
import errno
import grp
import os
import pwd
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import TypeVar

from sandlot.contracts.runtime import Tree
from sandlot.host import accounts, inside
from sandlot.host.accounts import TEXT_BYTES_MAX, find_account
from sandlot.host.asides import Asides, Note
from sandlot.host.inside import Inside, Noting, WrongKind
from sandlot.host.kernel import Identity, act_as, serve_sessions
from sandlot.model import (
    DeadlineExceeded,
    FileConflict,
    FileNotFound,
    InvalidArgument,
    InvalidState,
    LimitReached,
    PermissionDenied,
    SandlotError,
    Unavailable,
    limits,
)

_THREADS = 8
_LATE_MAX = 64  # that wait to be closed after their answer
_KNOWN_MAX = 4096
_LISTS_KNOWN_MAX = 64  # each may be long
_LISTS = ("/etc/passwd", "/etc/group")
_SHOWN_CHARS = 300
_CLOSING = "the engine is closing"
_T = TypeVar("_T")


_Key = tuple[int, str, tuple[int, ...], tuple[int, ...]]  # whose range, which name, and what the two lists looked like

_Lists = tuple[tuple[int, ...], tuple[int, ...]]  # what the lists of users and of groups look like

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
_WRONG = {
    errno.ENAMETOOLONG: "a name of it is too long",
    errno.EINVAL: "it cannot be used like this",
    errno.EOPNOTSUPP: "its filesystem cannot do that",
}


@dataclass(frozen=True, slots=True)
class Place:
    """Whose files, seen from where, and touched by whom. Handed to one verb, which closes the tree."""

    tree: Tree
    workspace: str
    user: str  # empty where the runtime has no users
    over: Callable[[], None] | None = None  # called when nothing works at the files any more, in any thread
    asides: Asides | None = None  # where names that are not in their place are noted
    session_id: str = ""


class Desk:
    """Where the files of one session are worked on, for the time of one operation. What was opened for it is closed
    when it was left and no thread works at it any more, and then nobody can begin: a number that is used after it was
    closed may be another session's by then."""

    def __init__(
        self, place: Place, path: str, known: "Known", later: Callable[[Callable[[], None]], None] | None = None
    ) -> None:
        self.inside = Inside(place.tree, place.workspace, self._name, _noting(place))
        self._open = ExitStack()
        if place.over:
            self._open.callback(place.over)
        self._open.callback(self.inside.close)
        self.path = self._locate(path)
        self.shown = printable(self.path)  # in errors
        self._first_id = place.tree.first_id
        self._user = place.user
        self._known = known
        self._who: Identity | None = None
        self._lists: _Lists = ((), ())
        self._lock = threading.Lock()
        self._at_work = 0
        self._left = False
        self._later = later  # closes when nobody waits for it
        self._lingers = False

    def _locate(self, path: str) -> str:
        try:
            return self.inside.locate(path)
        except BaseException:  # nobody gets this desk, so nobody would leave it
            self.close()
            raise

    @property
    def has_users(self) -> bool:
        return self._first_id is not None

    @property
    def who(self) -> Identity | None:
        """Whose rights the last step had; None: those of the engine."""
        return self._who

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
            if over and self._lingers and self._later:
                self._later(self.close)
            elif over:
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

    def linger(self, fd: int) -> None:
        """What takes long to close and is of no use to whoever waits for the answer. Until then it is not over."""
        self.keep(partial(os.close, fd))
        self._lingers = True

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
        if recent := self._known.recent.get((first_id, self._user)):
            # Who it was last time, if the user sees the same lists: to become root for that costs two switches.
            lists, who = recent
            act_as(who)
            self._lists = (self._look(_LISTS[0]), self._look(_LISTS[1]))
            if self._lists == lists:
                return who
        return self._look_up(first_id)

    def _look_up(self, first_id: int) -> Identity:
        # Whatever its bits say, the session's own list of users can be read; the guest reads it as root too.
        act_as(Identity(first_id, first_id, (first_id,), powerful=True))
        self._lists = (self._look(_LISTS[0]), self._look(_LISTS[1]))
        key = (first_id, self._user, *self._lists)
        found = self._known.users.get(key)
        if found is None:
            account = find_account(self._user, *map(self._text, _LISTS))
            if account is None:
                raise InvalidArgument(
                    f"the session has no user {self._user!r}", next_step="give a name of its /etc/passwd"
                )
            groups = tuple(first_id + group for group in account.groups)
            found = Identity(first_id + account.uid, first_id + account.gid, groups, powerful=account.uid == 0)
            if len(self._known.users) >= _KNOWN_MAX:
                self._known.users.clear()
                self._known.recent.clear()
            if all(self._lists):  # a list that was not seen is not known again
                self._known.users[key] = found
        if all(self._lists):
            self._known.recent[first_id, self._user] = (self._lists, found)
        return found

    def _name(self, which: int, number: int) -> str:
        """Of a user or a group, as the user sees the session's lists."""
        if self._first_id is None:
            return _hosts_name(which, number)
        key = (self._first_id, which, self._lists[which])
        known = self._known.names.get(key)
        if known is None:
            if len(self._known.names) >= _LISTS_KNOWN_MAX:
                self._known.names.clear()
            known = self._known.names[key] = accounts.names(self._text(_LISTS[which]))
        return known.get(number) or str(number)

    def owner_id(self, who: str) -> int:
        """The machine's number of a user of the session. Raises InvalidArgument."""
        if self._first_id is None:
            return _hosts_number(who, lambda: pwd.getpwnam(who).pw_uid)
        account = find_account(who, self._text(_LISTS[0]), b"")
        if account is None or ":" in who:
            raise InvalidArgument(f"the session has no user {who!r}", next_step="give a name of its /etc/passwd")
        return self._first_id + account.uid

    def group_id(self, who: str) -> int:
        """The same of a group."""
        if self._first_id is None:
            return _hosts_number(who, lambda: grp.getgrnam(who).gr_gid)
        number = accounts.find_group(who, self._text(_LISTS[1]))
        if number is None:
            raise InvalidArgument(f"the session has no group {who!r}", next_step="give a name of its /etc/group")
        return self._first_id + number

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


@dataclass(frozen=True, slots=True)
class Known:
    """What lists of users said, for as long as they look the same."""

    users: dict[_Key, Identity] = field(default_factory=dict[_Key, Identity])
    recent: dict[tuple[int, str], tuple[_Lists, Identity]] = field(
        default_factory=dict[tuple[int, str], tuple[_Lists, Identity]]
    )
    names: dict[tuple[int, int, tuple[int, ...]], dict[int, str]] = field(
        default_factory=dict[tuple[int, int, tuple[int, ...]], dict[int, str]]
    )


@lru_cache(maxsize=1024)
def _hosts_name(which: int, number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name if which else pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _hosts_number(who: str, look: Callable[[], int]) -> int:
    try:
        return int(who) if who.isdecimal() else look()
    except KeyError:
        raise InvalidArgument(f"this machine knows no {who!r}", next_step="give a name or a number") from None


class Hands:
    """The threads. Those that act for sessions do nothing else; those of sessions without users of their own stay
    themselves."""

    def __init__(self) -> None:
        self._others = ThreadPoolExecutor(_THREADS, "sandlot-files", serve_sessions)
        self._own = ThreadPoolExecutor(_THREADS, "sandlot-own-files", serve_sessions)
        self._late = ThreadPoolExecutor(1, "sandlot-left-files")
        self._is_open = False
        self._room = threading.BoundedSemaphore(_LATE_MAX)
        self._known = Known()

    def open(self) -> None:
        """Here and not on demand: a thread is born with the rights of the one that asks for it."""
        self._late.submit(int)
        self._is_open = True

    def close(self) -> None:
        self._late.shutdown(wait=False)
        self._others.shutdown(wait=False, cancel_futures=True)
        self._own.shutdown(wait=False, cancel_futures=True)

    @contextmanager
    def desk(self, place: Place, path: str) -> Generator[Desk]:
        desk = Desk(place, path, self._known, self._close_later)
        try:
            yield desk
        finally:
            if desk.leave():
                self._close(desk)

    def _close_later(self, close: Callable[[], None]) -> None:
        """Soon, in another thread; here where too many wait for that already."""

        def work() -> None:
            try:
                close()
            finally:
                self._room.release()

        if not self._is_open or not self._room.acquire(blocking=False):
            close()
            return
        try:
            self._late.submit(work)
        except RuntimeError:  # the engine is closing
            work()

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

    async def do(self, desk: Desk, step: Callable[[], _T], *, last: bool = False) -> _T:
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


def _noting(place: Place) -> Noting | None:
    asides = place.asides
    if asides is None:
        return None
    return lambda folder, name, target, mode: asides.take(
        Note(place.session_id, place.user, folder, name, target, mode)
    )


def printable(path: str) -> str:
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
