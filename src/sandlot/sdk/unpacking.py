"""An archive out of a sandbox becomes files of this machine. Blocking; raises OSError and SandlotError.

What comes out of a sandbox is nobody's to trust: nothing outside the directory is touched, and no link is made that
leads out of it."""

import asyncio
import stat
from collections.abc import AsyncGenerator, AsyncIterable, Callable
from contextlib import aclosing
from functools import partial
from typing import TypeVar

from sandlot.model import Member, MemberKind, SandlotError, TarReader, TreeTally
from sandlot.sdk.below import Below, NewFile, Parts, translate

_OWNER = stat.S_IRWXU
_T = TypeVar("_T")


class Unpacking:
    """Takes an archive in pieces. What came whole is there, and nothing else."""

    def __init__(self, tree: Below, to: Parts, tally: TreeTally) -> None:
        self._tree = tree
        self._to = to
        self._tally = tally
        self._reader = TarReader()
        self._member: Member | None = None
        self._file: NewFile | None = None
        self._left = 0
        self._at: Parts = to
        self._modes: list[tuple[Parts, int]] = []
        self._is_new = bool(to) and tree.make_directory(to)
        self._made = {to}  # directories that are known to be there, of the one that was last written to

    def feed(self, data: bytes) -> None:
        try:
            for item in self._reader.feed(data):
                if isinstance(item, Member):
                    self._at = self._to + item.parts
                    self._begin(item)
                elif self._file:
                    self._file.write(item)
                    self._left -= len(item)
                    self._tally.size_bytes += len(item)
                if self._member is not None and not self._left:
                    self._put(self._member)
        except SandlotError:  # some of ours are the kernel's too
            raise
        except OSError as error:
            raise translate(error, self._tree.shown(self._at)) from error

    def finish(self) -> None:
        self._reader.finish()
        for parts, mode in reversed(self._modes):
            self._tree.set_mode(parts, mode)

    def close(self) -> None:
        if self._file:
            self._file.close()
        self._file = self._member = None

    def _begin(self, member: Member) -> None:
        parts = self._to + member.parts
        if member.kind is MemberKind.DIRECTORY:
            self._directory(parts, member.mode)
            return
        self._reach(parts[:-1])
        if member.kind is MemberKind.SYMLINK:
            self._link(parts, member)
        elif member.kind is MemberKind.HARD_LINK:
            self._tally.skip(self._tree.shown(parts), "another name of a file")
        else:
            self._file = self._tree.new_file(parts)
            self._member, self._left = member, member.size_bytes

    def _put(self, member: Member) -> None:
        assert self._file is not None
        self._file.commit(member.mode, member.modified)
        self.close()
        self._tally.files += 1

    def _directory(self, parts: Parts, mode: int) -> None:
        is_new = self._is_new if parts == self._to else self._make(parts)
        if is_new:
            self._tree.set_mode(parts, mode | _OWNER)
            self._tally.directories += 1
            if mode & _OWNER != _OWNER:
                self._modes.append((parts, mode))

    def _make(self, parts: Parts) -> bool:
        self._reach(parts[:-1])
        return self._tree.make_directory(parts)

    def _reach(self, parts: Parts) -> None:
        """The directory is there: a filter leaves out the members that tell of it."""
        if parts in self._made:
            return
        for depth in range(len(self._to), len(parts)):
            if self._tree.make_directory(parts[: depth + 1]):
                self._tree.set_mode(parts[: depth + 1], 0o755)
                self._tally.directories += 1
        self._made = {self._to, parts}

    def _link(self, parts: Parts, member: Member) -> None:
        if not stays_below(member.parts, member.target):
            self._tally.skip(self._tree.shown(parts), "a link that leads out")
            return
        self._tree.link(parts, member.target)
        self._tally.links += 1


def stays_below(parts: Parts, target: str) -> bool:
    """Whether a link stays below the top, whatever other such links are there. It may go up only at its beginning, and
    no further than the top: behind a name, `..` could lead up from wherever that name leads."""
    names = [name for name in target.split("/") if name not in ("", ".")]
    up = 0
    while up < len(names) and names[up] == "..":
        up += 1
    return not target.startswith("/") and up <= len(parts) - 1 and ".." not in names[up:]


async def unpack(pieces: AsyncIterable[bytes], path: str, to: Parts, tally: TreeTally) -> None:
    """Below a directory that is there, or below one in it that is made. Raises SandlotError."""
    tree = await in_thread(partial(Below, path), path, Below.close)
    try:
        shown = tree.shown(to)
        new = await in_thread(lambda: Unpacking(tree, to, tally), shown)
        try:
            async with aclosing(_ahead(pieces)) as coming:
                async for piece in coming:
                    await in_thread(partial(new.feed, piece), shown)
            await in_thread(new.finish, shown)
        finally:
            new.close()
    finally:
        tree.close()


async def _ahead(pieces: AsyncIterable[bytes]) -> AsyncGenerator[bytes]:
    """One piece is on its way while the one before is unpacked."""
    source = aiter(pieces)
    coming = asyncio.ensure_future(anext(source, None))
    try:
        while (piece := await coming) is not None:
            coming = asyncio.ensure_future(anext(source, None))
            yield piece
    finally:
        coming.cancel()
        await asyncio.wait([coming])


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
