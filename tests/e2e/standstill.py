"""Makes an engine stand still at a named place, so that something else can come in between."""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from sandlot.host import failpoints
from sandlot.host.service import SandboxHostService
from tests import storages

PATIENCE_S = 60


class Standstill:
    def __init__(self) -> None:
        self._reached = asyncio.Event()
        self._go = asyncio.Event()

    async def reached(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await self._reached.wait()

    def go(self) -> None:
        self._go.set()

    async def pass_by(self) -> None:
        self._reached.set()
        async with asyncio.timeout(PATIENCE_S):
            await self._go.wait()


@contextmanager
def standstill(place: str) -> Generator[Standstill]:
    """Everyone who comes to the place waits there until `go`."""
    made = Standstill()
    failpoints.arm(place, made.pass_by)
    try:
        yield made
    finally:
        made.go()
        failpoints.disarm()


async def settled(host: SandboxHostService, data: Path, patience_s: float = PATIENCE_S) -> None:
    """What lies on disk is what the journal names, every guest has a session, and nothing is marked or held."""
    give_up = asyncio.get_running_loop().time() + patience_s
    while problems := [*_problems(host, data), *await files_apart(host)]:
        assert asyncio.get_running_loop().time() < give_up, problems
        await asyncio.sleep(0.02)  # what is counted behind the back ends by itself


def at(place: str, storage: str) -> str:
    """A storage that is whole takes a snapshot where the guest stands, and never moves it."""
    return "snapshot: synced" if place == "snapshot: swapped" and storage != "layers" else place


def _needed(host: SandboxHostService, storage: str) -> list[str]:
    """States and points that the journal names."""
    sessions = host._lifecycle._sessions.values()  # pyright: ignore[reportPrivateUsage] - the only place that knows all
    own = [session for session in sessions if session.row.storage == storage]
    points = [row.point for session in own for row in session.snapshots.values()]
    return points + [session.row.volume_state or session.row.volume for session in own]


async def files_apart(host: SandboxHostService) -> list[str]:
    """What every storage says itself, and of zfs what its pool says. One that is not attached has nothing."""
    found: list[str] = []
    for storage in host._parts.storages.at_work():  # pyright: ignore[reportPrivateUsage]
        needed = _needed(host, storage.name)
        missing = [part for text in needed for part in await storage.missing(text)]
        found += [f"{storage.name} lacks {missing}"] if missing else []
        strays = await storage.strays(needed)
        found += [f"{storage.name} has {strays}"] if strays else []
        if storage.name == "zfs":
            data = host._settings.data  # pyright: ignore[reportPrivateUsage] - nothing tells it
            needless = await storages.needless_in_pool(data, needed)
            found += [f"the pool has {sorted(needless)}"] if needless else []
    return found


def _problems(host: SandboxHostService, data: Path) -> list[str]:
    sessions = host._lifecycle._sessions.values()  # pyright: ignore[reportPrivateUsage] - the only place that knows all
    named = {layer for text in _needed(host, "layers") for layer in text.split(",")}
    there = storages.kept(data, "layers")
    # A merged layer waits for the next row that would name all that it was made of.
    unnamed = {name for name in there - named if not (data / "volumes" / name / "merged.json").is_file()}
    found = [f"layers without a name: {unnamed}"] if unnamed else []
    found += [f"layers that are missing: {named - there}"] if named - there else []
    guests = set(host._parts.keeper.names())  # pyright: ignore[reportPrivateUsage]
    volumes = {session.row.volume for session in sessions}  # a guest that died is kept until its session ends
    alive = {session.row.volume for session in sessions if session.guest is not None}
    found += [f"guests without a session: {guests - volumes}"] if guests - volumes else []
    found += [f"sessions without a guest: {alive - guests}"] if alive - guests else []
    for session in sessions:
        if not session.gate.is_open:
            found.append(f"{session.row.session_id}: its gate is shut")
        if session.volume and session.volume.state != session.row.volume_state:
            found.append(f"{session.row.session_id}: it stands elsewhere than is recorded")
    return found
