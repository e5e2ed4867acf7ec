"""What two points of a session do not have in common: told to whoever asks, and counted for every turn."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from sandlot.contracts.storage import Shown, Storage
from sandlot.host.comparing import compare
from sandlot.host.history import History, SnapshotRow
from sandlot.host.storage.canonical import WORKSPACE
from sandlot.model import Change, ChangeCounts, ChangeKind, DiffRequest, NotFound, Unavailable

_DIFF_BATCH = 200
_COUNTED_AT_ONCE = 50
_COUNT_PAUSE_S = 0.01
_COUNT_AFTER_S = 0.05  # whoever closed the turn is about to do something, and the two would fight for the processor


@dataclass(frozen=True, slots=True)
class Sight:
    """What a session sees of its files: a root with a template below, or its workspace and nothing around it."""

    template: Path | None
    workspace: str  # as it is told; of interest where there is no root

    def compare(self, shown: Shown, below: str = "/", *, patch: bool = False) -> Generator[Change]:
        """Paths are those that the session sees."""
        if self.template is not None:
            return compare(self.template, shown, below=below, patch=patch)
        return self._compare_workspaces(shown, below, patch=patch)

    def _compare_workspaces(self, shown: Shown, below: str, *, patch: bool) -> Generator[Change]:
        if f"{self.workspace}/".startswith(f"{below.rstrip('/')}/"):
            inner = "/"
        elif below.startswith(f"{self.workspace}/"):
            inner = below.removeprefix(self.workspace)
        else:
            return
        steps = compare(None, _workspaces(shown), below=inner, patch=patch)
        try:
            for change in steps:
                yield replace(change, path=self.workspace + change.path)
        finally:
            steps.close()


def _workspaces(shown: Shown) -> Shown:
    places = None
    if shown.places is not None:
        inside = [(path.removeprefix(f"/{WORKSPACE}"), whole) for path, whole in shown.places if _is_inside(path)]
        # One that was replaced as a whole is looked through.
        places = None if ("", True) in inside else tuple(place for place in inside if place[0])
    return Shown(_below(shown.old), _below(shown.new), _below(shown.apart), places)


def _is_inside(path: str) -> bool:
    return f"{path}/".startswith(f"/{WORKSPACE}/")


def _below(volumes: Sequence[Path]) -> tuple[Path, ...]:
    return tuple(
        path / WORKSPACE for path in volumes if (path / WORKSPACE).is_dir() and not (path / WORKSPACE).is_symlink()
    )


@asynccontextmanager
async def diff(
    storage: Storage, sight: Sight, old: str, new: str, request: DiffRequest
) -> AsyncGenerator[AsyncIterator[Sequence[Change]]]:
    """Between two states or points. Raises Unavailable while it is read."""
    async with storage.showing(old, new) as shown:
        steps = sight.compare(shown, request.below, patch=request.patch)
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
    sight: Sight,
    row: SnapshotRow,
    parent: SnapshotRow | None,
    held: ExitStack,
) -> None:
    """Behind the back of whoever closed the turn: it takes as long as much has changed."""
    with held:
        await asyncio.sleep(_COUNT_AFTER_S)
        # Destroyed meanwhile: nobody will ask.
        with suppress(OSError, NotFound, Unavailable):
            await _count(storage, history, sight, row, parent)


async def _count(
    storage: Storage, history: History, sight: Sight, row: SnapshotRow, parent: SnapshotRow | None
) -> None:
    async with storage.showing(parent.point if parent else None, row.point) as shown:
        steps = sight.compare(shown)
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
