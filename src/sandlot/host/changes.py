"""What two points of a session do not have in common: told to whoever asks, and counted for every turn."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from itertools import islice
from pathlib import Path

from sandlot.contracts.storage import Storage
from sandlot.host.comparing import compare
from sandlot.host.history import History, SnapshotRow
from sandlot.model import Change, ChangeCounts, ChangeKind, DiffRequest, NotFound, Unavailable

_DIFF_BATCH = 200
_COUNTED_AT_ONCE = 50
_COUNT_PAUSE_S = 0.01
_COUNT_AFTER_S = 0.05  # whoever closed the turn is about to do something, and the two would fight for the processor


@asynccontextmanager
async def diff(
    storage: Storage, template: Path, old: str, new: str, request: DiffRequest
) -> AsyncGenerator[AsyncIterator[Sequence[Change]]]:
    """Between two states or points. Raises Unavailable while it is read."""
    async with storage.showing(old, new) as shown:
        steps = compare(template, shown.old, shown.new, shown.apart, below=request.below, patch=request.patch)
        try:
            yield _batches(steps)
        finally:
            _end(steps)


async def _batches(steps: Generator[Change]) -> AsyncIterator[Sequence[Change]]:
    try:
        while batch := await asyncio.to_thread(lambda: list(islice(steps, _DIFF_BATCH))):
            yield batch
    except OSError as error:
        raise Unavailable(f"the points cannot be compared: {error.strerror}") from error


async def count_later(
    storage: Storage,
    history: History,
    template: Path,
    row: SnapshotRow,
    parent: SnapshotRow | None,
    held: ExitStack,
) -> None:
    """Behind the back of whoever closed the turn: it takes as long as much has changed."""
    with held:
        await asyncio.sleep(_COUNT_AFTER_S)
        # Destroyed meanwhile: nobody will ask.
        with suppress(OSError, NotFound, Unavailable):
            await _count(storage, history, template, row, parent)


async def _count(
    storage: Storage, history: History, template: Path, row: SnapshotRow, parent: SnapshotRow | None
) -> None:
    async with storage.showing(parent.point if parent else None, row.point) as shown:
        steps = compare(template, shown.old, shown.new, shown.apart)
        found: Counter[str] = Counter()
        try:
            # In small pieces: it must not take the processor from those who wait for something.
            while batch := await asyncio.to_thread(lambda: list(islice(steps, _COUNTED_AT_ONCE))):
                found.update(change.kind for change in batch)
                await asyncio.sleep(_COUNT_PAUSE_S)
        finally:
            _end(steps)
    counts = ChangeCounts(*(found[kind] for kind in ChangeKind))
    await history.count_changes(row.session_id, row.turn or 0, counts)


def _end(steps: Generator[Change]) -> None:
    """Let go of both trees. One that a thread is still at, because nobody waited, goes when the thread is done."""
    with suppress(ValueError):
        steps.close()
