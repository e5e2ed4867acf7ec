"""Points of a session brought onto a volume of another storage, one after another."""

import asyncio
import errno
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import TypeVar

from sandlot.contracts.storage import Shown, Storage, Volume
from sandlot.host.archives.applying import apply_entries
from sandlot.host.archives.entries import Entry
from sandlot.host.archives.finding import find_entries
from sandlot.host.history import SnapshotRow
from sandlot.host.kernel import sync_filesystem
from sandlot.model import LimitReached, SandlotError, Unavailable

_STEP_S = 0.1  # in a thread at one go: who wants to leave waits no longer
_FULL = (errno.ENOSPC, errno.EDQUOT)
_END = object()
_T = TypeVar("_T")

Source = Callable[[SnapshotRow | None, SnapshotRow | None], AbstractAsyncContextManager[Iterable[Entry]]]


def base_of(row: SnapshotRow | None, rows: Sequence[SnapshotRow], head: str | None) -> SnapshotRow | None:
    """What the changes of a snapshot begin with, or those of the files as they are now: with what it grew from; with
    the one before it where that is gone; and with the template where there is none."""
    names = {each.name: each for each in rows}
    grown_from = head if row is None else row.parent
    before = rows if row is None else rows[: rows.index(row)]
    return names[grown_from] if grown_from is not None else before[-1] if before else None


@asynccontextmanager
async def showing(
    storage: Storage, template: Path | None, old: SnapshotRow | None, new: str | Volume
) -> AsyncGenerator[Iterable[Entry]]:
    """What changed between a snapshot, or the template, and a point or the files of a volume."""
    if old is None and isinstance(new, Volume):
        layers = (new.path / "u", *new.layers)
        with closing(find_entries(template, Shown((), layers, layers))) as entries:
            yield entries
        return
    text = new.state if isinstance(new, Volume) else new
    async with storage.showing(old.point if old else None, text) as shown:
        apart = shown if old else Shown((), shown.new, shown.new)
        with closing(find_entries(template, apart)) as entries:
            yield entries


@asynccontextmanager
async def closing_in_thread(entries: Generator[Entry]) -> AsyncGenerator[Iterable[Entry]]:
    """What was read in a thread is closed in one."""
    try:
        yield entries
    finally:
        await asyncio.to_thread(entries.close)


async def step_by_step(steps: Generator[_T], tell: Callable[[list[_T]], None]) -> None:
    """Blocking work in threads, a little at a time; it is closed before this returns."""
    try:
        done = False
        while not done:
            done, told = await in_thread(partial(_advance, steps))
            tell(told)
    finally:
        await asyncio.to_thread(steps.close)


async def in_thread(work: Callable[[], _T]) -> _T:
    """Whoever is cancelled waits for its end. Raises LimitReached when the disk is full, Unavailable."""
    step = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(step)
    except asyncio.CancelledError:
        await asyncio.wait([step])
        raise
    except OSError as error:
        if isinstance(error, SandlotError):
            raise
        if error.errno in _FULL:
            raise LimitReached("the disk has no room for the files", next_step="free space", limit="disk") from error
        raise Unavailable(f"the files cannot be carried over: {error.strerror}") from error


def _advance(steps: Generator[_T]) -> tuple[bool, list[_T]]:
    told: list[_T] = []
    give_up = time.monotonic() + _STEP_S
    while time.monotonic() < give_up:
        value = next(steps, _END)
        if value is _END:
            return True, told
        told.append(value)  # pyright: ignore[reportArgumentType] - it is no end
    return False, told


class Carrier:
    """A volume that becomes what another one was. What it has made so far can be given back at any time."""

    def __init__(self, storage: Storage, template: Path | None, volume: Volume) -> None:
        self._storage = storage
        self._template = template
        self.volume = volume
        self.points: dict[str, str] = {}  # of snapshots that are there, by name
        self._at: SnapshotRow | None = None
        self.on_point: Callable[[], Awaitable[None]] | None = None
        self.on_bytes: Callable[[int], None] | None = None

    async def carry(self, rows: Sequence[SnapshotRow], head: str | None, source: Source) -> None:
        """All snapshots, oldest first, and the files as they are now. `source` is asked for what changed from one to
        the next. Raises LimitReached, Unavailable, and what the source raises."""
        for row in (*rows, None):
            base = base_of(row, rows, head)
            if base is not self._at and base is not None:
                await self._go_on(await self._storage.restore(self.volume, self.points[base.name]))
            async with source(base, row) as entries:
                await step_by_step(apply_entries(self.volume, self._template, entries), self._tell)
            if row is not None:
                taken = await self._storage.snapshot(self.volume, alone=True)
                self.points[row.name] = taken.point
                await self._go_on(taken.volume)
            self._at = row
            if self.on_point:
                await self.on_point()
        # A storage may promise no more than that its points are on disk.
        await in_thread(partial(sync_filesystem, self.volume.path / "u"))
        await self._storage.sync()

    def _tell(self, told: list[int]) -> None:
        if self.on_bytes:
            self.on_bytes(sum(told))

    async def _go_on(self, volume: Volume) -> None:
        if volume != self.volume:
            before, self.volume = self.volume, volume
            await self._storage.release(before.state)
