"""Compares what the journal says with what the machine holds, and mends what is safe to mend.

Safe is what carries our mark and what nobody needs: guests, layers, outputs, control groups and mounts that no row of
the journal names and that nobody is making. What the journal names and the machine lacks is told, and left alone.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sandlot.host.history import History, SnapshotRow
from sandlot.host.journal import SessionRow
from sandlot.host.kernel import unmount
from sandlot.host.notes import REBUILD, Notes
from sandlot.host.output import remove_outputs
from sandlot.host.parts import HostParts
from sandlot.host.removal import remove_tree
from sandlot.host.wishes import Wishes
from sandlot.model import Examination, Finding, FindingKind, SandlotError, SessionState

_LOOK_AGAIN_S = 0.3
_OF_USERS = ("imports", "lockers")  # folders whose entries have a name when they are whole
_NEXT_ENGINE = "the next engine that starts on the data directory settles it"
_REPAIR = "`sandlot doctor --storage --repair` removes it"


@dataclass(frozen=True, slots=True)
class _World:
    """What was found on one look."""

    rows: Sequence[SessionRow]
    snapshots: Sequence[SnapshotRow]
    guests: frozenset[str]


class Examiner:
    def __init__(
        self,
        parts: HostParts,
        data: Path,
        outputs: Path,
        at_work: Callable[[], Collection[str]],
        is_changing: Callable[[], bool],
        notes: Notes,
    ) -> None:
        """`at_work`: the names of volumes that have no row yet, or will never have one. `is_changing`: files of some
        session are being copied or given back."""
        self._parts = parts
        self._history = History(parts.journal)
        self._data = data
        self._outputs = outputs
        self._at_work = at_work
        self._is_changing = is_changing
        self._notes = notes

    async def examine(self, *, repair: bool) -> Examination:
        rows, found = await self._look()
        if found:
            # Someone may have been in the middle of something; what is wrong is wrong a moment later too.
            await asyncio.sleep(_LOOK_AGAIN_S)
            rows, again = await self._look()
            still = {(finding.kind, finding.name) for finding in found}
            found = [finding for finding in again if (finding.kind, finding.name) in still]
        if repair and any(finding.repairable for finding in found):
            for finding in found:
                await self._mend(finding)
            rows, after = await self._look()
            left = {(finding.kind, finding.name) for finding in after}
            found = [replace(finding, mended=(finding.kind, finding.name) not in left) for finding in found]
        return Examination(len(rows), tuple(found))

    async def _look(self) -> tuple[Sequence[SessionRow], list[Finding]]:
        rows = await self._parts.journal.rows()
        names = {name for runtime in self._parts.runtimes.values() for name in await runtime.names()}
        world = _World(rows, await self._history.snapshots(), frozenset(names))
        found: list[Finding] = []
        for look in (self._journal, self._sessions, self._files, self._volumes, self._guests, self._leftovers):
            found += [finding async for finding in look(world)]
        return rows, found

    # ---- looking -----------------------------------------------------------------------------------------------

    async def _journal(self, world: _World) -> AsyncIterator[Finding]:
        del world
        for problem in await self._parts.journal.problems():
            step = "stop the engine, keep a copy of the data directory, and restore the journal from a backup"
            yield Finding(FindingKind.JOURNAL, "journal.db", problem, step)

    async def _sessions(self, world: _World) -> AsyncIterator[Finding]:
        for row in world.rows:
            if row.state is SessionState.DESTROYING or row.changing:
                what = "its end" if row.state is SessionState.DESTROYING else row.changing
                yield Finding(FindingKind.UNFINISHED, row.session_id, f"{what} was begun", _NEXT_ENGINE)
            elif row.state is SessionState.ACTIVE and row.volume not in world.guests:
                step = f"`sandlot recover {row.session_id}` brings it back"
                yield Finding(FindingKind.GUEST_MISSING, row.session_id, "it is active, and its guest is gone", step)

    async def _files(self, world: _World) -> AsyncIterator[Finding]:
        states = {row.session_id: row.volume_state or row.volume for row in world.rows}
        storages = {row.session_id: row.storage for row in world.rows}
        points = [(shot.session_id, f"{shot.session_id}/{shot.name}", shot.point) for shot in world.snapshots]
        needed = [(session_id, session_id, state) for session_id, state in states.items()] + [
            each for each in points if each[0] in states
        ]
        for storage in self._parts.storages.at_work():
            name = storage.name
            own = [(title, text) for session_id, title, text in needed if storages[session_id] == name]
            for title, text in own:
                if missing := await storage.missing(text):
                    step = "put them back from a backup, or delete what needs them"
                    yield Finding(FindingKind.FILES_MISSING, title, f"not on the disk: {', '.join(missing)}", step)
            if (lost := await self._notes.lost(storage, {row.session_id: {} for row in world.rows})).sessions:
                yield Finding(FindingKind.JOURNAL, name, lost.told(), REBUILD)
                continue
            # What is half made has no name in the journal either; it is looked for when nothing is.
            for stray in () if self._is_changing() else await storage.strays([text for _title, text in own]):
                yield Finding(FindingKind.FILES_STRAY, f"{name}:{stray}", "no session needs them", _REPAIR, True)

    async def _volumes(self, world: _World) -> AsyncIterator[Finding]:
        """Those of users, and templates: what has no name yet, or none any more, and what a session lacks."""
        for row in world.rows:
            for mount in Wishes.from_text(row.spec).mounts:
                if not await asyncio.to_thread(Path(mount.path).is_dir):
                    what = f"{'the directory' if mount.is_of_host else 'the volume'} {mount.source} is not there"
                    yield Finding(FindingKind.FILES_MISSING, row.session_id, what, "put it back from a backup")
        for folder in () if self._is_changing() else _OF_USERS:
            for name in await asyncio.to_thread(_hidden, self._data / folder):
                what = "it was half made, or half removed"
                yield Finding(FindingKind.FILES_STRAY, f"{folder}:{name}", what, _REPAIR, True)

    async def _guests(self, world: _World) -> AsyncIterator[Finding]:
        known = {row.volume for row in world.rows if row.state is not SessionState.FAILED} | set(self._at_work())
        for name in sorted(world.guests - known):
            yield Finding(FindingKind.GUEST_STRAY, name, "it runs, and no session has it", _REPAIR, True)

    async def _leftovers(self, world: _World) -> AsyncIterator[Finding]:
        volumes = {row.volume for row in world.rows}
        for folder in await asyncio.to_thread(lambda: sorted(self._outputs.iterdir())):
            if folder.name.startswith("v-") and folder.name not in volumes | set(self._at_work()):
                yield Finding(FindingKind.OUTPUT_STRAY, folder.name, "no session has this output", _REPAIR, True)
        for name in self._parts.keeper.groups.strays(world.guests | set(self._at_work())):
            yield Finding(FindingKind.GROUP_STRAY, name, "no guest is in it", _REPAIR, True)
        for point in _mounts(self._data):
            yield Finding(FindingKind.MOUNT_STRAY, point, "it shows files of a session on the host", _REPAIR, True)

    # ---- mending -----------------------------------------------------------------------------------------------

    async def _mend(self, finding: Finding) -> None:
        """What does not work is found again."""
        try:
            if finding.kind is FindingKind.GUEST_STRAY:
                for runtime in self._parts.runtimes.values():
                    if finding.name in await runtime.names():
                        await runtime.stop(finding.name)
            elif finding.kind is FindingKind.FILES_STRAY:
                storage, _, stray = finding.name.partition(":")
                if storage in _OF_USERS:
                    await asyncio.to_thread(remove_tree, self._data / storage / stray)
                else:
                    await self._parts.storages[storage].remove_stray(stray)
            elif finding.kind is FindingKind.OUTPUT_STRAY:
                await asyncio.to_thread(remove_outputs, self._outputs / finding.name)
            elif finding.kind is FindingKind.GROUP_STRAY:
                await self._parts.keeper.groups.end(finding.name)
            elif finding.kind is FindingKind.MOUNT_STRAY:
                await asyncio.to_thread(unmount, finding.name)
        except (SandlotError, OSError):
            return


def _hidden(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith(".")) if folder.is_dir() else []


def _mounts(data: Path) -> list[str]:
    """Roots of sessions belong into the namespaces of their guests, and nowhere else."""
    found: list[str] = []
    for line in Path("/proc/self/mountinfo").read_text(errors="replace").splitlines():
        before, _, after = line.partition(" - ")
        kind, source = after.split(" ")[:2]
        point = before.split(" ")[4].encode().decode("unicode_escape")
        if (kind, source) == ("overlay", "sandlot") and (point.startswith(f"{data}/") or f"{data}/" in after):
            found.append(point)
    return found
