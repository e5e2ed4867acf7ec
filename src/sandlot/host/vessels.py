"""A volume with a guest on it: what a session is made of, before it is one."""

import asyncio
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sandlot.contracts.runtime import Guest, MountPlan, Runtime, SpawnPlan, StartPlan
from sandlot.contracts.storage import Storage, Volume
from sandlot.host.errands import run_errand
from sandlot.host.journal import SessionRow
from sandlot.host.session import Session
from sandlot.host.storage.canonical import RANGES_MAX
from sandlot.host.wishes import Wishes
from sandlot.model import (
    Capability,
    LimitReached,
    NotFound,
    Resources,
    SandlotError,
    SessionSpec,
    SessionState,
    SnapshotNotFound,
    Template,
)

DEFAULT_USER = "user"  # of the built-in template


@dataclass(slots=True)
class Vessel:
    """Has no name that anyone outside knows."""

    volume: Volume
    id_range: int
    template: Template
    storage: Storage
    runtime: Runtime
    resources: Resources  # the limits that its guest has, or is to have
    mounts: tuple[MountPlan, ...] = ()
    image: Path | None = None  # of the processes that its guest goes on with
    guest: Guest | None = None  # until it is started
    lost: bool = False
    on_end: Callable[[str], None] | None = None
    claim: Callable[[Session], None] | None = None  # by the session that it becomes, where something was started in it

    def ended(self, reason: str) -> None:
        self.lost = True
        if self.on_end:
            self.on_end(reason)


def new_row(
    session_id: str, serial: int, spec: SessionSpec, wishes: Wishes, vessel: Vessel, origin: str | None = None
) -> SessionRow:
    """Of a session that is made of a vessel. `spec` names the template as it is to be told."""
    now = time.time()
    return SessionRow(
        session_id=session_id,
        serial=serial,
        state=SessionState.ACTIVE,
        reason="",
        volume=vessel.volume.name,
        id_range=vessel.id_range,
        storage=vessel.storage.name,
        runtime=vessel.runtime.name,
        template=spec.template,
        template_path=vessel.template.path,
        created=now,
        expires=now + spec.timeout_s,
        request_id=spec.request_id,
        spec=wishes.to_text(),
        volume_state=vessel.volume.state,
        origin=origin,
    )


class Vessels:
    """Makes and discards them. Each has a range of user ids that no other has while it lives."""

    def __init__(self) -> None:
        self._ranges: set[int] = {0}  # 0 is for probes
        self.names: dict[int, str] = {}  # of volumes that were begun here, by their ranges
        self._next = 1

    def claim(self, id_range: int) -> None:
        """The range of a session from an earlier engine."""
        self._ranges.add(id_range)

    def free(self, id_range: int) -> None:
        self._ranges.discard(id_range)
        self.names.pop(id_range, None)
        self._next = min(self._next, max(1, id_range))

    async def begin(
        self, storage: Storage, runtime: Runtime, template: Template, resources: Resources, point: str = ""
    ) -> Vessel:
        """A vessel with a volume and without a guest. Raises LimitReached, Unavailable; then nothing is left behind."""
        id_range = self.take_range()
        try:
            volume = await storage.create("v-" + secrets.token_hex(8), point, resources.disk_bytes)
        except NotFound as error:
            self.free(id_range)
            raise SnapshotNotFound(f"the snapshot has gone meanwhile: {error.message}") from error
        except BaseException:  # undone, then raised again
            self.free(id_range)
            raise
        self.names[id_range] = volume.name
        return Vessel(volume, id_range, template, storage, runtime, resources)

    async def start(self, vessel: Vessel) -> None:
        """Give it a guest. Raises Unavailable, DeadlineExceeded; whoever has the vessel discards it then."""
        path = Path(vessel.template.path) if vessel.template.path else None
        plan = StartPlan(vessel.volume, path, vessel.id_range, vessel.resources, vessel.mounts, vessel.image)
        vessel.guest = await vessel.runtime.start(plan, vessel.ended)

    async def limit(self, vessel: Vessel, resources: Resources) -> None:
        """Give one that has its guest already what its session asks for. Raises Unavailable."""
        if vessel.resources != resources:
            await vessel.runtime.group(vessel.volume.name).limit(resources)
            if vessel.resources.disk_bytes != resources.disk_bytes:
                await vessel.storage.limit(vessel.volume, resources.disk_bytes)
            vessel.resources = resources

    async def make(self, storage: Storage, runtime: Runtime, template: Template, resources: Resources) -> Vessel:
        """Both at once. Raises as they do; then nothing is left behind."""
        vessel = await self.begin(storage, runtime, template, resources)
        try:
            await self.start(vessel)
        except BaseException:  # undone, then raised again
            await self.discard(vessel)
            raise
        return vessel

    async def warm_up(self, vessel: Vessel) -> None:
        """Run a program that does nothing: the first one in a root costs three times what the next ones do, and a
        kernel in user space has settled after some more. How it ends does not matter. Raises Unavailable,
        DeadlineExceeded."""
        user = vessel.template.user or DEFAULT_USER if Capability.USERS in vessel.runtime.capabilities else ""
        plan = SpawnPlan(("true",), vessel.runtime.workspace(vessel.volume), {"PATH": "/usr/bin:/bin"}, user)
        assert vessel.guest is not None
        for _time in range(vessel.runtime.warm_ups):
            await run_errand(vessel.guest, plan)

    async def discard(self, vessel: Vessel) -> None:
        """Undo, as far as it went. Shielded: an undo that is cancelled halfway would leave things behind."""

        async def undo() -> None:
            with suppress(SandlotError):
                await vessel.runtime.stop(vessel.volume.name)
            await vessel.storage.release(vessel.volume.state)
            self.free(vessel.id_range)

        await asyncio.shield(asyncio.get_running_loop().create_task(undo(), name=f"discard {vessel.volume.name}"))

    def take_range(self) -> int:
        for number in range(self._next, RANGES_MAX):
            if number not in self._ranges:
                self._ranges.add(number)
                self._next = number + 1
                return number
        raise LimitReached("no range of user ids is free", limit="id_ranges")
