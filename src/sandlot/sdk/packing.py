"""A directory of this machine as an archive, on its way into a sandbox. Blocking; raises OSError."""

import asyncio
import errno
import os
import posixpath
import stat
from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing, suppress
from typing import Protocol

from sandlot.model import FileConflict, FileNotFound, MemberKind, SandlotError, TreeTally, limits, tar
from sandlot.sdk.below import Below, Parts, translate

_PIECE_BYTES = 4 << 20
_MODE_BITS = 0o777
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC
_OTHER = "a pipe, a socket or a device"
_GONE = (errno.ENOENT, errno.ELOOP, errno.ENXIO, errno.ENOTDIR)


class Ignoring(Protocol):
    """What is not taken along."""

    def enter(self, folder: int, parts: Parts) -> None:
        """A directory is about to be gone through."""
        ...

    def ignores(self, parts: Parts, *, is_directory: bool) -> bool: ...


class Packing:
    """Goes through a directory. No link below it is followed; they are packed as they are."""

    def __init__(self, path: str, tally: TreeTally, ignoring: Ignoring | None = None) -> None:
        self._path = path
        self._tally = tally
        self._ignoring = ignoring
        self._out = bytearray()

    def shown(self, parts: Parts) -> str:
        return posixpath.join(self._path, *parts)

    def pieces(self) -> Generator[bytes]:
        top = Below(self._path)
        try:
            pending: list[Parts] = [()]
            while pending:
                parts = pending.pop()
                try:
                    here = os.dup(top.folder(parts))
                except OSError as error:
                    if not parts or error.errno not in _GONE:
                        raise
                    self._tally.skip(self.shown(parts), "gone meanwhile")
                    continue
                try:
                    yield from self._folder(here, parts, pending)
                finally:
                    os.close(here)
        finally:
            top.close()
        yield self._take() + tar.END

    def _take(self) -> bytes:
        taken = bytes(self._out)
        self._out.clear()
        return taken

    def _folder(self, here: int, parts: Parts, pending: list[Parts]) -> Generator[bytes]:
        found = os.fstat(here)
        name = "/".join(parts) or "."
        if len(os.fsencode(name)) > limits.PATH_BYTES_MAX:
            self._tally.skip(self.shown(parts)[:300], "too deep to be named")
            return
        if self._ignoring:
            self._ignoring.enter(here, parts)
        self._out += tar.header(name, MemberKind.DIRECTORY, found.st_mode & _MODE_BITS, 0, int(found.st_mtime))
        self._tally.directories += 1
        above = "" if name == "." else name + "/"
        with os.scandir(here) as entries:
            for entry in entries:
                is_directory = entry.is_dir(follow_symlinks=False)
                if self._ignoring and self._ignoring.ignores((*parts, entry.name), is_directory=is_directory):
                    continue
                path = above + entry.name
                if is_directory:
                    pending.append((*parts, entry.name))
                elif entry.is_file(follow_symlinks=False):
                    yield from self._file(here, entry.name, path)
                elif entry.is_symlink():
                    self._link(here, entry.name, path)
                else:
                    self._tally.skip(posixpath.join(self._path, path), _OTHER)
                if len(self._out) >= _PIECE_BYTES:
                    yield self._take()

    def _link(self, here: int, name: str, path: str) -> None:
        with suppress(FileNotFoundError):
            self._out += tar.header(path, MemberKind.SYMLINK, _MODE_BITS, 0, 0, os.readlink(name, dir_fd=here))
            self._tally.links += 1

    def _file(self, here: int, name: str, path: str) -> Generator[bytes]:
        shown = posixpath.join(self._path, path)
        try:
            fd = os.open(name, _READ, dir_fd=here)
        except OSError as error:
            if error.errno not in _GONE:
                raise translate(error, shown) from error
            self._tally.skip(shown, "gone meanwhile")
            return
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                self._tally.skip(shown, "changed meanwhile")
                return
            first = os.read(fd, min(_PIECE_BYTES, max(found.st_size, 1)))
            size = found.st_size if len(first) == _PIECE_BYTES else len(first)
            self._out += tar.header(path, MemberKind.FILE, found.st_mode & _MODE_BITS, size, int(found.st_mtime))
            self._out += first
            self._tally.size_bytes += len(first)
            if size > len(first):
                yield self._take()
                yield from self._rest(fd, shown, size - len(first))
            self._out += tar.padding(size)
            self._tally.files += 1
        finally:
            os.close(fd)

    def _rest(self, fd: int, shown: str, left: int) -> Generator[bytes]:
        while left:
            piece = os.read(fd, min(_PIECE_BYTES, left))
            if not piece:
                raise FileConflict(f"{shown}: became shorter while it was read", next_step="try again", path=shown)
            left -= len(piece)
            self._tally.size_bytes += len(piece)
            yield piece


async def packed(path: str, tally: TreeTally, ignoring: Ignoring | None = None) -> AsyncGenerator[bytes]:
    """The archive of a directory. Raises SandlotError."""
    async with aclosing(ahead(Packing(path, tally, ignoring).pieces(), path)) as pieces:
        async for piece in pieces:
            yield piece


async def ahead(pieces: Generator[bytes], path: str) -> AsyncGenerator[bytes]:
    """What a generator that blocks makes in threads, one piece ahead of whoever takes it. Raises SandlotError."""
    loop = asyncio.get_running_loop()
    job = loop.run_in_executor(None, next, pieces, None)
    try:
        while (piece := await asyncio.shield(job)) is not None:
            job = loop.run_in_executor(None, next, pieces, None)
            if piece:
                yield piece
    except SandlotError:  # some of ours are the kernel's too
        raise
    except NotADirectoryError:
        raise FileConflict(f"{path}: is no directory", next_step="give a directory", path=path) from None
    except FileNotFoundError:
        raise FileNotFound(f"{path}: there is no such directory", next_step="check the path", path=path) from None
    except OSError as error:
        raise translate(error, path) from error
    finally:
        await asyncio.wait([job])  # a thread is in the generator until then
        job.exception()
        pieces.close()
