"""Files of this machine as one side of a copy. What blocks is done in threads."""

import asyncio
import os
import posixpath
import select
import stat
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

from sandlot.cli.stream import OwnStreams
from sandlot.cli.transfer import Content, Entry
from sandlot.model import FileConflict, FileKind, FileNotFound, Stream
from sandlot.sdk.below import Below, NewFile, Parts, kind_in_words, translate
from sandlot.sdk.unpacking import in_thread

_PIECE_BYTES = 1 << 20
_KINDS = {stat.S_IFREG: FileKind.FILE, stat.S_IFDIR: FileKind.DIRECTORY, stat.S_IFLNK: FileKind.SYMLINK}
# Opening must not wait for someone at the other end of a pipe, nor take a terminal.
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_T = TypeVar("_T")


def kind_of(path: str) -> FileKind | None:
    """What is there, with links followed; None for nothing. Blocks. Raises SandlotError."""
    try:
        return _KINDS.get(stat.S_IFMT(os.stat(path).st_mode), FileKind.OTHER)  # noqa: PTH116 - a path may hold any bytes
    except FileNotFoundError:
        return None
    except OSError as error:
        raise translate(error, path) from error


def _entry(name: str, found: os.stat_result) -> Entry:
    kind = _KINDS.get(stat.S_IFMT(found.st_mode), FileKind.OTHER)
    return Entry(name, kind, stat.S_IMODE(found.st_mode) & 0o777, found.st_size)


class _LocalContent:
    def __init__(self, entry: Entry, fd: int, first: bytes, shown: str) -> None:
        self.entry = entry
        self._fd = fd
        self._first = first
        self._shown = shown

    async def __aiter__(self) -> AsyncIterator[bytes]:
        piece = self._first
        while piece:
            yield piece
            if len(piece) < _PIECE_BYTES:
                return
            piece = await in_thread(lambda: _read_piece(self._fd), self._shown)


def _read_piece(fd: int) -> bytes:
    """As much as fits; less only at the end, whatever the kernel gives at once."""
    piece = os.read(fd, _PIECE_BYTES)
    if len(piece) in (0, _PIECE_BYTES):
        return piece
    whole = bytearray(piece)
    while len(whole) < _PIECE_BYTES and (piece := os.read(fd, _PIECE_BYTES - len(whole))):
        whole += piece
    return bytes(whole)


class LocalSource:
    """A path as a person gave it: links lead on at its end."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.entry = Entry("", FileKind.OTHER, None, 0)

    async def open(self) -> None:
        """Raises SandlotError."""
        found = await in_thread(lambda: os.stat(self.path), self.path)  # noqa: PTH116 - the same
        name = posixpath.basename(self.path.rstrip("/"))
        self.entry = _entry("" if name in (".", "..") else name, found)
        if self.entry.kind is FileKind.OTHER:
            raise FileConflict(
                f"{self.path}: is {kind_in_words(found.st_mode)}, not a file or a directory",
                next_step=f"give its content as stdin: `sandlot cp - ID:PATH < {self.path}`",
                path=self.path,
            )

    @asynccontextmanager
    async def read(self) -> AsyncGenerator[Content]:
        found, fd, first = await in_thread(self._open_file, self.path, lambda opened: os.close(opened[1]))
        try:
            yield _LocalContent(_entry(self.entry.name, found), fd, first, self.path)
        finally:
            os.close(fd)

    def _open_file(self) -> tuple[os.stat_result, int, bytes]:
        fd = os.open(self.path, _READ)
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise FileNotFound(f"{self.path}: is no file any more")
            return found, fd, _read_piece(fd)
        except BaseException:  # whoever cannot have it cannot close it
            os.close(fd)
            raise


class LocalTarget:
    """Below a directory that is there."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._below: Below | None = None

    async def open(self) -> None:
        """Raises SandlotError."""
        self._below = await in_thread(lambda: Below(self.path), self.path, Below.close)

    def close(self) -> None:
        if self._below:
            self._below.close()

    async def write(self, parts: Parts, mode: int | None, content: AsyncIterable[bytes]) -> None:
        tree, bits = self._tree(), 0o644 if mode is None else mode
        shown = tree.shown(parts)
        pieces = aiter(content)
        first = await anext(pieces, b"")
        second = await anext(pieces, b"")
        if not second:
            await in_thread(lambda: _write_at_once(tree, parts, first, bits), shown)
            return
        file = await in_thread(lambda: tree.new_file(parts), shown, NewFile.close)
        try:
            for piece in (first, second):
                await self._write(file, piece, shown)
            async for piece in pieces:
                await self._write(file, piece, shown)
            await in_thread(lambda: file.commit(bits), shown)
        finally:
            file.close()

    async def _write(self, file: NewFile, piece: bytes, shown: str) -> None:
        await in_thread(lambda: file.write(piece), shown)

    def _tree(self) -> Below:
        assert self._below is not None, "not open"
        return self._below


def _write_at_once(tree: Below, parts: Parts, data: bytes, mode: int) -> None:
    file = tree.new_file(parts)
    try:
        file.write(data)
        file.commit(mode)
    finally:
        file.close()


class StandardInput:
    """Our stdin as one file without a name."""

    entry = Entry("", FileKind.FILE, None, 0)

    @asynccontextmanager
    async def read(self) -> AsyncGenerator[Content]:
        yield self

    async def __aiter__(self) -> AsyncIterator[bytes]:
        loop, fd = asyncio.get_running_loop(), sys.stdin.fileno()
        pieces: asyncio.Queue[bytes | OSError] = asyncio.Queue(1)

        def feed() -> None:
            piece: bytes | OSError = b" "
            with suppress(RuntimeError, asyncio.CancelledError):  # when the loop has ended, nobody is left to tell
                while piece and not isinstance(piece, OSError):
                    piece = _read_waiting(fd)
                    asyncio.run_coroutine_threadsafe(pieces.put(piece), loop).result()

        # A daemon: it may sit in a read that never returns, and must not keep the program from ending.
        threading.Thread(target=feed, name="stdin", daemon=True).start()
        while piece := await pieces.get():
            if isinstance(piece, OSError):
                raise translate(piece, "stdin") from piece
            yield piece


def _read_waiting(fd: int) -> bytes | OSError:
    while True:
        try:
            return os.read(fd, _PIECE_BYTES)
        except BlockingIOError:  # whoever shares it with us made it non-blocking
            select.select([fd], [], [])
        except OSError as error:
            return error


class StandardOutput:
    """Our stdout as a place for one file."""

    async def write(self, parts: Parts, mode: int | None, content: AsyncIterable[bytes]) -> None:
        del parts, mode
        streams = OwnStreams()
        async for piece in content:
            await streams.write(Stream.STDOUT, piece)
