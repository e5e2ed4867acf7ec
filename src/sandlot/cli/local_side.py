"""Files of this machine as one side of a copy. What blocks is done in threads."""

import asyncio
import os
import posixpath
import select
import stat
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import islice
from typing import TypeVar

from sandlot.cli.below import Below, NewFile, Parts, kind_in_words, translate
from sandlot.cli.stream import OwnStreams
from sandlot.cli.transfer import Content, Entry
from sandlot.model import FileConflict, FileKind, FileNotFound, SandlotError, Stream

_PIECE_BYTES = 1 << 20
_BATCH_ENTRIES = 1000
_KINDS = {stat.S_IFREG: FileKind.FILE, stat.S_IFDIR: FileKind.DIRECTORY, stat.S_IFLNK: FileKind.SYMLINK}
# Opening must not wait for someone at the other end of a pipe, nor take a terminal.
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_T = TypeVar("_T")


async def in_thread(work: Callable[[], _T], shown: str, undo: Callable[[_T], None] | None = None) -> _T:
    """Done in a thread, which is waited for even when we are told to stop: what it uses must not be closed under it,
    and `undo` gives back what it brings when nobody is left to take it. Raises what went wrong in words of ours."""
    job = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(job)
    except asyncio.CancelledError:
        await asyncio.wait([job])
        if job.exception() is None and undo:
            undo(job.result())
        raise
    except SandlotError:
        raise
    except OSError as error:
        raise translate(error, shown) from error


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
    """A path as a person gave it: links lead on at its end, and are left out below it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._below: Below | None = None
        self.entry = Entry("", FileKind.OTHER, None, 0)

    async def open(self) -> None:
        """Raises SandlotError."""
        found = await in_thread(lambda: os.stat(self._path), self._path)  # noqa: PTH116 - the same
        name = posixpath.basename(self._path.rstrip("/"))
        self.entry = _entry("" if name in (".", "..") else name, found)
        if self.entry.kind is FileKind.OTHER:
            raise FileConflict(
                f"{self._path}: is {kind_in_words(found.st_mode)}, not a file or a directory",
                next_step=f"give its content as stdin: `sandlot cp - ID:PATH < {self._path}`",
                path=self._path,
            )
        if self.entry.kind is FileKind.DIRECTORY:
            self._below = await in_thread(lambda: Below(self._path), self._path, Below.close)

    def close(self) -> None:
        if self._below:
            self._below.close()

    def shown(self, parts: Parts) -> str:
        return posixpath.join(self._path, *parts)

    @asynccontextmanager
    async def entries(self, parts: Parts) -> AsyncGenerator[AsyncIterator[Sequence[Entry]]]:
        listing = _listing(self._tree(), parts)
        shown = self.shown(parts)
        try:
            first = await in_thread(lambda: next(listing), shown)

            async def batches() -> AsyncIterator[Sequence[Entry]]:
                batch: Sequence[Entry] | None = first
                while batch is not None:
                    if batch:
                        yield batch
                    batch = await in_thread(lambda: next(listing, None), shown)

            yield batches()
        finally:
            listing.close()

    @asynccontextmanager
    async def read(self, parts: Parts) -> AsyncGenerator[Content]:
        shown = self.shown(parts)
        found, fd, first = await in_thread(lambda: self._open_file(parts), shown, lambda opened: os.close(opened[1]))
        try:
            yield _LocalContent(_entry(parts[-1] if parts else self.entry.name, found), fd, first, shown)
        finally:
            os.close(fd)

    def _open_file(self, parts: Parts) -> tuple[os.stat_result, int, bytes]:
        if parts:
            above = self._tree().folder(parts[:-1])
            fd = os.open(parts[-1], _READ | os.O_NOFOLLOW, dir_fd=above)
        else:
            fd = os.open(self._path, _READ)
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise FileNotFound(f"{self.shown(parts)}: is no file any more")
            return found, fd, _read_piece(fd)
        except BaseException:  # whoever cannot have it cannot close it
            os.close(fd)
            raise

    def _tree(self) -> Below:
        assert self._below is not None, "only a directory has something below it"
        return self._below


def _listing(tree: Below, parts: Parts) -> Generator[list[Entry]]:
    """In batches; at least one, which may be empty."""
    fd = os.dup(tree.folder(parts))  # entries ask it for more, long after the tree has moved on
    try:
        with os.scandir(fd) as found:
            while True:
                batch = list(islice(found, _BATCH_ENTRIES))
                yield [entry for entry in map(_entry_of, batch) if entry]
                if len(batch) < _BATCH_ENTRIES:
                    return
    finally:
        os.close(fd)


def _entry_of(found: os.DirEntry[str]) -> Entry | None:
    try:
        return _entry(found.name, found.stat(follow_symlinks=False))
    except FileNotFoundError:
        return None  # gone meanwhile


class LocalTarget:
    """Below a directory that is there."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._below: Below | None = None

    async def open(self) -> None:
        """Raises SandlotError."""
        self._below = await in_thread(lambda: Below(self._path), self._path, Below.close)

    def close(self) -> None:
        if self._below:
            self._below.close()

    async def make_directory(self, parts: Parts, mode: int) -> bool:
        del mode  # of its source; it may forbid even its owner to put something in
        return await in_thread(lambda: self._tree().make_directory(parts), self._tree().shown(parts))

    async def finish_directory(self, parts: Parts, mode: int) -> None:
        await in_thread(lambda: self._tree().set_mode(parts, mode), self._tree().shown(parts))

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

    def shown(self, parts: Parts) -> str:
        del parts
        return "stdin"

    @asynccontextmanager
    async def entries(self, parts: Parts) -> AsyncGenerator[AsyncIterator[Sequence[Entry]]]:
        raise AssertionError(f"stdin is a file; {parts} is not below it")
        yield

    @asynccontextmanager
    async def read(self, parts: Parts) -> AsyncGenerator[Content]:
        del parts
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

    async def make_directory(self, parts: Parts, mode: int) -> bool:
        raise AssertionError(f"stdout takes one file, not {parts} of mode {mode}")

    async def finish_directory(self, parts: Parts, mode: int) -> None:
        raise AssertionError(f"stdout takes one file, not {parts} of mode {mode}")

    async def write(self, parts: Parts, mode: int | None, content: AsyncIterable[bytes]) -> None:
        del parts, mode
        streams = OwnStreams()
        async for piece in content:
            await streams.write(Stream.STDOUT, piece)
