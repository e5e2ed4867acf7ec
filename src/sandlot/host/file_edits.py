"""Verbs that change a part of a file or what is told of it, and that copy. Asynchronous, as one user."""

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar

from sandlot.host import attributes
from sandlot.host.attributes import Changing
from sandlot.host.desk import Desk, Hands, Place, printable
from sandlot.host.duplicating import Duplicating
from sandlot.host.editing import Appending, LineReader, replace_text
from sandlot.host.files import finish, next_step, with_path
from sandlot.host.replacement import Replacement
from sandlot.model import (
    AttributesGet,
    AttributesSet,
    FileAppend,
    FileChange,
    FileCopy,
    FileInfo,
    FileLines,
    FileReplace,
    Line,
    LinkMake,
    TreeTally,
)

_Opened = TypeVar("_Opened", Appending, LineReader)


class _Lines:
    def __init__(self, reader: LineReader, batches: AsyncIterator[list[Line]]) -> None:
        self.info = reader.info
        self._reader = reader
        self._batches = batches

    @property
    def total(self) -> int | None:
        return self._reader.total

    def __aiter__(self) -> AsyncIterator[list[Line]]:
        return self._batches


class FileEdits:
    def __init__(self, hands: Hands) -> None:
        self._hands = hands

    async def append(self, place: Place, request: FileAppend, content: AsyncIterable[bytes]) -> FileInfo:
        with self._hands.desk(place, request.path) as desk:
            pieces = aiter(content)
            first = await anext(pieces, b"")
            file = await self._hands.do(desk, lambda: _kept(desk, Appending(desk.inside, request, desk.path, first)))
            async for piece in pieces:
                await self._hands.do(desk, partial(file.write, piece))
            return await self._hands.do(desk, file.finish, last=True)

    @asynccontextmanager
    async def lines(self, place: Place, request: FileLines) -> AsyncGenerator[_Lines]:
        with self._hands.desk(place, request.path) as desk:
            reader = await self._hands.do(desk, lambda: _kept(desk, LineReader(desk.inside, desk.path, request)))
            steps = reader.batches()

            async def batches() -> AsyncIterator[list[Line]]:
                while (batch := await self._hands.do(desk, lambda: next_step(desk, steps, None))) is not None:
                    if batch:
                        yield batch

            yield _Lines(reader, batches())

    async def replace(self, place: Place, request: FileReplace) -> int:
        with self._hands.desk(place, request.path) as desk:
            count, new = await self._hands.do(desk, lambda: _replace(desk, request))
            while new and await self._hands.do(desk, lambda: finish(desk, new)) is None:
                pass
            return count

    async def copy(self, place: Place, request: FileCopy) -> TreeTally:
        with self._hands.desk(place, request.path) as desk:
            to = desk.inside.locate(request.to)
            desk.shown = f"{desk.shown} to {printable(to)}"
            work = Duplicating(desk.inside, desk.path, to, recursive=request.recursive, overwrite=request.overwrite)
            steps = work.steps()
            desk.keep(steps.close)
            step = partial(with_path, desk, work, lambda: next_step(desk, steps, desk))
            while await self._hands.do(desk, step) is not desk:
                pass
            return work.tally

    async def change(self, place: Place, request: FileChange) -> FileInfo:
        with self._hands.desk(place, request.path) as desk:
            work = await self._hands.do(desk, lambda: _change(desk, request))
            if not request.recursive:
                return await self._hands.do(desk, work.one, last=True)
            steps = work.all()
            desk.keep(steps.close)
            step = partial(with_path, desk, work, lambda: next(steps))
            while (told := await self._hands.do(desk, step)) is None:
                pass
            return told

    async def make_link(self, place: Place, request: LinkMake) -> FileInfo:
        with self._hands.desk(place, request.path) as desk:
            return await self._hands.do(
                desk,
                lambda: attributes.make_link(desk.inside, desk.path, request.target, parents=request.parents),
                last=True,
            )

    async def get_attributes(self, place: Place, request: AttributesGet) -> dict[str, bytes]:
        with self._hands.desk(place, request.path) as desk:
            return await self._hands.do(desk, lambda: attributes.get_attributes(desk.inside, desk.path), last=True)

    async def set_attributes(self, place: Place, request: AttributesSet) -> dict[str, bytes]:
        with self._hands.desk(place, request.path) as desk:
            return await self._hands.do(
                desk,
                lambda: attributes.set_attributes(desk.inside, desk.path, request.values, replace=request.replace),
                last=True,
            )


def _kept(desk: Desk, opened: _Opened) -> _Opened:
    desk.keep(opened.close)
    return opened


def _replace(desk: Desk, request: FileReplace) -> tuple[int, Replacement | None]:
    count, new = replace_text(desk.inside, desk.path, request)
    if new:
        desk.keep(new.close)
    else:
        desk.end()
    return count, new


def _change(desk: Desk, request: FileChange) -> Changing:
    uid = -1 if request.owner is None else desk.owner_id(request.owner)
    gid = -1 if request.group is None else desk.group_id(request.group)
    return Changing(desk.inside, desk.path, request.mode, uid, gid)
