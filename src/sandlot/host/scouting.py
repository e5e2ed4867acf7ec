"""The scout: a small program that goes through files of a session for the engine (`guest/scout/`).

It is given one directory, the rights of the user and nothing else, and it can be ended at any time: a search that would
take for ever takes no thread of the engine. What it tells is not believed further than its form."""

import asyncio
import os
import signal
import struct
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from sandlot.host.kernel import Identity
from sandlot.model import DeadlineExceeded, FileKind, LimitReached, Unavailable, limits

_HEAD = struct.Struct("<12I64I2Q5I")
_MAGIC = 0x31544353
_GROUPS_MAX = 64
_TOP = 3
_SIZE = struct.Struct("<I")
_ERROR = struct.Struct("<i")
_END = struct.Struct("<8Q")
RECORD_BYTES_MAX = 4 << 20
_READ_BYTES = 256 << 10
_STEP_BYTES = 12  # of a program
HIDDEN, LITERAL = 1, 2
KINDS = {FileKind.FILE: 1, FileKind.DIRECTORY: 2, FileKind.SYMLINK: 4, FileKind.OTHER: 8}
ALL_KINDS = 15


class Mode(IntEnum):
    FIND = 0
    SEARCH = 1
    USAGE = 2
    SEARCH_ONE = 3


@dataclass(frozen=True, slots=True)
class Errand:
    """What a scout is sent for."""

    mode: Mode
    wants: int = 0
    kinds: int = ALL_KINDS
    depth: int = limits.FILE_DEPTH_MAX
    limit: int = limits.FILE_OFFSET_MAX
    limit_per_file: int = limits.FILE_OFFSET_MAX
    context: int = 0
    line_bytes: int = limits.SEARCH_LINE_BYTES
    after: bytes = b""
    needle: bytes = b""
    pattern: bytes = b""
    include: bytes = b""
    exclude: bytes = b""

    def packed(self, who: Identity | None) -> bytes:
        groups = who.groups[:_GROUPS_MAX] if who else ()
        texts = (self.after, self.needle, self.pattern, self.include, self.exclude)
        sizes = (len(self.after), len(self.needle), *(len(text) // _STEP_BYTES for text in texts[2:]))
        head = _HEAD.pack(
            _MAGIC,
            self.mode,
            self.wants,
            self.kinds,
            self.depth,
            self.context,
            self.line_bytes,
            who is not None,
            who.uid if who else 0,
            who.gid if who else 0,
            bool(who and who.powerful),
            len(groups),
            *groups,
            *(0 for _ in range(_GROUPS_MAX - len(groups))),
            self.limit,
            self.limit_per_file,
            *sizes,
        )
        return b"".join((head, *texts))


@dataclass(frozen=True, slots=True)
class Told:
    """The last word of a scout."""

    entries: int = 0
    found: int = 0
    unreadable: int = 0
    is_cut: bool = False
    size_bytes: int = 0
    blocks: int = 0
    files: int = 0
    directories: int = 0


class Scout:
    """One on its way. `told` is there at the end of its records."""

    def __init__(self, output: int) -> None:
        self.told: Told | None = None
        self._output = output
        self._loop = asyncio.get_running_loop()

    async def records(self) -> AsyncIterator[list[bytes]]:
        """As they come, without their sizes. Raises what it failed with, DeadlineExceeded, Unavailable."""
        held = b""
        while self.told is None:
            data = await self._read()
            if not data:
                raise Unavailable("the search ended before its end", next_step="try again")
            held += data
            found, used = self._split(held)
            held = held[used:]
            if found:
                yield found

    def _split(self, held: bytes) -> tuple[list[bytes], int]:
        found: list[bytes] = []
        at = 0
        while len(held) - at >= _SIZE.size:
            (size,) = _SIZE.unpack_from(held, at)
            if not 0 < size <= RECORD_BYTES_MAX:
                raise Unavailable("the search told something that cannot be")
            if len(held) - at - _SIZE.size < size:
                break
            record = held[at + _SIZE.size : at + _SIZE.size + size]
            at += _SIZE.size + size
            if record[:1] == b"X":
                _raise(record)
            if record[:1] == b"E":
                entries, count, unreadable, is_cut, *rest = _END.unpack(record[1 : 1 + _END.size])
                self.told = Told(entries, count, unreadable, bool(is_cut), *rest)
                break
            found.append(record)
        return found, at

    async def _read(self) -> bytes:
        with suppress(BlockingIOError):
            return os.read(self._output, _READ_BYTES)
        ready: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(self._output, lambda: ready.done() or ready.set_result(None))
        try:
            async with asyncio.timeout(limits.SEARCH_DEADLINE_S):
                await ready
        except TimeoutError:
            raise DeadlineExceeded(
                f"the search told nothing for {limits.SEARCH_DEADLINE_S:g} s",
                next_step="search in fewer files, or for a simpler pattern",
            ) from None
        finally:
            self._loop.remove_reader(self._output)
        return os.read(self._output, _READ_BYTES)


def _raise(record: bytes) -> None:
    (number,) = _ERROR.unpack(record[1:5])
    what = record[5:69].partition(b"\0")[0].decode(errors="replace")
    if what.startswith(("directories", "memory")):
        raise LimitReached(f"the search met its end: {what}", next_step="search in fewer files", limit="search")
    raise OSError(number, f"the search failed: {what}")


@asynccontextmanager
async def sent(program: Path, errand: Errand, top: int, who: Identity | None) -> AsyncGenerator[Scout]:
    """A scout below a directory; leaving ends it. `top` stays the caller's. Raises Unavailable."""
    output, theirs = os.pipe2(os.O_CLOEXEC)
    try:
        try:
            pid = await asyncio.to_thread(_spawn, program, errand.packed(who), theirs, top)
        finally:
            os.close(theirs)
        try:
            os.set_blocking(output, False)
            yield Scout(output)
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            # Whoever is cancelled does not leave one that nobody waits for.
            await asyncio.shield(asyncio.to_thread(_reap, pid))
    finally:
        os.close(output)


def _spawn(program: Path, request: bytes, output: int, top: int) -> int:
    given = os.memfd_create("request", os.MFD_CLOEXEC)
    try:
        view = memoryview(request)
        while view:
            view = view[os.write(given, view) :]
        os.lseek(given, 0, os.SEEK_SET)
        null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        try:
            actions = [
                (os.POSIX_SPAWN_DUP2, given, 0),
                (os.POSIX_SPAWN_DUP2, output, 1),
                (os.POSIX_SPAWN_DUP2, null, 2),
                (os.POSIX_SPAWN_DUP2, top, _TOP),
            ]
            return os.posix_spawn(program, [program.name], {}, file_actions=actions)
        finally:
            os.close(null)
    except OSError as error:
        raise Unavailable(
            f"{program.name} cannot be started: {error.strerror}", next_step="run `make guest`, or install again"
        ) from error
    finally:
        os.close(given)


def _reap(pid: int) -> None:
    with suppress(ChildProcessError):  # a program around us does it itself
        os.waitpid(pid, 0)
