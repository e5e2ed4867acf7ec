"""Verbs that go through many files: find, search, usage, and listings in order. A scout does the work."""

import asyncio
import errno
import os
import posixpath
import stat
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

from sandlot.host import inside as hands_on
from sandlot.host.desk import Desk, Hands, Place, translate
from sandlot.host.inside import Inside, WrongKind
from sandlot.host.matches import Matches
from sandlot.host.scouting import ALL_KINDS, HIDDEN, KINDS, LITERAL, Errand, Mode, Scout, sent
from sandlot.model import (
    FileFind,
    FileInfo,
    FileKind,
    FileList,
    FileSearch,
    FileUsage,
    InvalidArgument,
    Match,
    SearchTally,
    Unavailable,
    Usage,
    limits,
)
from sandlot.patterns.parsing import literal_of, parse_path, parse_regex, parse_text
from sandlot.patterns.programs import Choice, Node, compile_node

_T = TypeVar("_T")
_ENTRY = struct.Struct("<4I2Q2q4I")
_FOUND = ord("F")
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK
_BLOCK_BYTES = 512  # what the kernel counts in


@dataclass(frozen=True, slots=True)
class _Found(Generic[_T]):
    tally: SearchTally
    batches: AsyncIterator[Sequence[_T]]

    def __aiter__(self) -> AsyncIterator[Sequence[_T]]:
        return self.batches


class FileSearches:
    def __init__(self, hands: Hands, program: Path) -> None:
        self._hands = hands
        self._program = program

    @asynccontextmanager
    async def find(self, place: Place, request: FileFind) -> AsyncGenerator[_Found[FileInfo]]:
        with self._hands.desk(place, request.path) as desk:
            errand = await asyncio.to_thread(_to_find, request)  # a large pattern takes a while
            top = await self._hands.do(desk, lambda: _open(desk, _DIRECTORY))
            async with sent(self._program, errand, top, desk.who) as scout:
                tally = SearchTally()
                yield _Found(tally, self._entries(desk, scout, tally))

    @asynccontextmanager
    async def list(self, place: Place, request: FileList) -> AsyncGenerator[AsyncIterator[Sequence[FileInfo]]]:
        """A page of a listing in order."""
        with self._hands.desk(place, request.path) as desk:
            limit = limits.FILE_OFFSET_MAX if request.limit is None else request.limit
            errand = Errand(Mode.FIND, HIDDEN, depth=request.depth, limit=limit, after=_below(desk, request.after))
            top = await self._hands.do(desk, lambda: _open(desk, _DIRECTORY))
            async with sent(self._program, errand, top, desk.who) as scout:
                yield self._entries(desk, scout, SearchTally())

    @asynccontextmanager
    async def search(self, place: Place, request: FileSearch) -> AsyncGenerator[_Found[Match]]:
        with self._hands.desk(place, request.path) as desk:
            errand = await asyncio.to_thread(_to_search, request)
            top, is_file = await self._hands.do(desk, lambda: _open_any(desk))
            errand = replace(errand, mode=Mode.SEARCH_ONE) if is_file else errand
            async with sent(self._program, errand, top, desk.who) as scout:
                tally = SearchTally()
                yield _Found(tally, self._matches(desk, scout, tally, request.context))

    async def usage(self, place: Place, request: FileUsage) -> Usage:
        with self._hands.desk(place, request.path) as desk:
            top = await self._hands.do(desk, lambda: _open_directory(desk))
            if top < 0:
                found = await self._hands.do(desk, lambda: _stat(desk.inside, desk.path), last=True)
                return Usage(found.st_size, found.st_blocks * _BLOCK_BYTES, files=1)
            async with sent(self._program, Errand(Mode.USAGE, HIDDEN), top, desk.who) as scout:
                async for _records in scout.records():
                    pass
                told = scout.told
                if told is None:
                    raise Unavailable("the count ended before its end")
                return Usage(told.size_bytes, told.blocks * _BLOCK_BYTES, told.files, told.directories, told.unreadable)

    async def _entries(self, desk: Desk, scout: Scout, tally: SearchTally) -> AsyncIterator[Sequence[FileInfo]]:
        path = hands_on.tidy(desk.path)
        async for records in self._translated(desk, scout, tally):
            # In a thread: names of users may have to be read.
            yield await self._hands.do(desk, partial(_infos, desk.inside, path, records))

    async def _matches(
        self, desk: Desk, scout: Scout, tally: SearchTally, context: int
    ) -> AsyncIterator[Sequence[Match]]:
        lines = Matches(hands_on.tidy(desk.path), context)
        async for records in self._translated(desk, scout, tally):
            if found := lines.take(records):
                yield found
        if found := lines.finish():
            yield found

    async def _translated(self, desk: Desk, scout: Scout, tally: SearchTally) -> AsyncIterator[Sequence[bytes]]:
        try:
            async for records in scout.records():
                yield records
        except OSError as error:
            raise translate(error, desk.path, desk.shown) from error
        if told := scout.told:
            tally.entries, tally.found, tally.unreadable = told.entries, told.found, told.unreadable
            tally.is_cut = told.is_cut


def _to_find(request: FileFind) -> Errand:
    hidden = request.hidden or any(part.startswith(".") for part in request.pattern.split("/") if part != ".")
    return Errand(
        Mode.FIND,
        HIDDEN if hidden else 0,
        sum(KINDS[kind] for kind in set(request.kinds)) or ALL_KINDS,
        limit=request.limit,
        pattern=compile_node(parse_path(request.pattern, ignore_case=request.ignore_case)),
    )


def _to_search(request: FileSearch) -> Errand:
    parse = parse_text if request.literal else parse_regex
    node = parse(request.pattern, ignore_case=request.ignore_case)
    is_text = request.literal and not request.ignore_case
    return Errand(
        Mode.SEARCH,
        (HIDDEN if request.hidden else 0) | (LITERAL if is_text else 0),
        limit=request.limit,
        limit_per_file=limits.FILE_OFFSET_MAX if request.limit_per_file is None else request.limit_per_file,
        context=request.context,
        needle=literal_of(node),
        pattern=b"" if is_text else compile_node(node),
        include=_any_of(request.include),
        exclude=_any_of(request.exclude),
    )


def _any_of(patterns: Sequence[str]) -> bytes:
    parts: tuple[Node, ...] = tuple(parse_path(pattern, anywhere=True) for pattern in patterns)
    return compile_node(Choice(parts)) if parts else b""


def _open(desk: Desk, flags: int) -> int:
    fd = desk.inside.open(desk.path, flags)
    desk.keep(partial(os.close, fd))
    return fd


def _open_directory(desk: Desk) -> int:
    """-1 when it is something else."""
    try:
        return _open(desk, _DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
        return -1


def _open_any(desk: Desk) -> tuple[int, bool]:
    """A directory, or a file; whether it is a file."""
    with desk.inside.opened(desk.path, os.O_PATH) as found:
        is_directory = stat.S_ISDIR(os.fstat(found).st_mode)
    if is_directory:
        return _open(desk, _DIRECTORY), False
    fd, _found = hands_on.open_regular(desk.inside, desk.path)
    desk.keep(partial(os.close, fd))
    return fd, True


def _stat(inside: Inside, path: str) -> os.stat_result:
    with inside.opened(path, os.O_PATH | os.O_NOFOLLOW) as fd:
        return os.fstat(fd)


def _below(desk: Desk, after: str) -> bytes:
    """What a page begins behind, as the scout names it."""
    if not after:
        return b""
    top, path = hands_on.tidy(desk.path), hands_on.tidy(desk.inside.locate(after))
    below = path[len(top) :].lstrip("/") if path.startswith(top) else ""
    if not below or posixpath.join(top, below) != path:
        raise InvalidArgument(f"{after[:80]!r} is not below the directory", next_step="give a path as it was told")
    return os.fsencode(below)


def _infos(inside: Inside, top: str, records: Sequence[bytes]) -> Sequence[FileInfo]:
    found: list[FileInfo] = []
    begin = top if top.endswith("/") else top + "/"
    unpack, size_of_entry = _ENTRY.unpack_from, 1 + _ENTRY.size
    kinds: dict[int, tuple[FileKind, int]] = {}  # most have what another one has
    owners: dict[tuple[int, int], tuple[int, int, str, str]] = {}
    for record in records:
        mode, uid, gid, _links, size, _blocks, modified, changed, modified_ns, changed_ns, target, path = unpack(
            record, 1
        )
        at = size_of_entry + target
        if record[0] != _FOUND or len(record) != at + path:
            raise WrongKind(errno.EINVAL, "told something that cannot be", top)
        kind = kinds.get(mode) or kinds.setdefault(mode, hands_on.kind_and_mode(mode))
        ids = (uid, gid)
        owner = owners.get(ids) or owners.setdefault(ids, inside.owners_of(*ids))
        found.append(
            FileInfo(
                begin + record[at:].decode(errors="surrogateescape"),
                kind[0],
                size,
                kind[1],
                owner[0],
                owner[1],
                modified + modified_ns / 1e9,
                os.fsdecode(record[size_of_entry:at]) if target else "",
                owner[2],
                owner[3],
                changed + changed_ns / 1e9,
            )
        )
    return found
