"""A volume with a guest on it: what a session is made of, before it is one."""

import asyncio
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sandlot.contracts.runtime import Guest, MountPlan, ProcessEnd, Runtime, SpawnPlan, StartPlan
from sandlot.contracts.storage import Storage, Volume
from sandlot.host.storage.canonical import RANGES_MAX
from sandlot.model import Capability, DeadlineExceeded, LimitReached, Resources, SandlotError, Stream, Template, limits

DEFAULT_USER = "user"  # of the built-in template
_WARM_UP_ID = 1 << 62  # calls count from 1


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
    guest: Guest | None = None  # until it is started
    lost: bool = False
    on_end: Callable[[str], None] | None = None

    def ended(self, reason: str) -> None:
        self.lost = True
        if self.on_end:
            self.on_end(reason)


class _First:
    """Hears of the warm-up. How it ended does not matter, only that it ended."""

    def __init__(self, done: asyncio.Future[None]) -> None:
        self.done = done

    def _end(self) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def on_started(self, pid: int) -> None:
        del pid

    def on_output(self, stream: Stream, offset: int, data: bytes) -> None:
        del stream, offset, data

    def on_stdin_taken(self, offset: int, closed: bool) -> None:
        del offset, closed

    def on_failed(self, error: int, stage: str) -> None:
        del error, stage
        self._end()

    def on_exit(self, ended: ProcessEnd) -> None:
        del ended
        self._end()

    def on_lost(self, reason: str) -> None:
        del reason
        self._end()


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
        id_range = self._take_range()
        try:
            volume = await storage.create("v-" + secrets.token_hex(8), point, resources.disk_bytes)
        except BaseException:  # undone, then raised again
            self.free(id_range)
            raise
        self.names[id_range] = volume.name
        return Vessel(volume, id_range, template, storage, runtime, resources)

    async def start(self, vessel: Vessel) -> None:
        """Give it a guest. Raises Unavailable, DeadlineExceeded; whoever has the vessel discards it then."""
        path = Path(vessel.template.path) if vessel.template.path else None
        plan = StartPlan(vessel.volume, path, vessel.id_range, vessel.resources, vessel.mounts)
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
        """Run a program that does nothing: the first one in a root costs three times what the next ones do."""
        first = _First(asyncio.get_running_loop().create_future())
        user = DEFAULT_USER if Capability.USERS in vessel.runtime.capabilities else ""
        plan = SpawnPlan(("true",), vessel.runtime.workspace(vessel.volume), {"PATH": "/usr/bin:/bin"}, user)
        assert vessel.guest is not None
        process = vessel.guest.spawn(_WARM_UP_ID, plan, first)
        try:
            async with asyncio.timeout(limits.GUEST_DEADLINE_S):
                await first.done
        except TimeoutError:
            await self.discard(vessel)
            raise DeadlineExceeded("a guest of the warm pool did not run its first program") from None
        process.release()

    async def discard(self, vessel: Vessel) -> None:
        """Undo, as far as it went. Shielded: an undo that is cancelled halfway would leave things behind."""

        async def undo() -> None:
            with suppress(SandlotError):
                await vessel.runtime.stop(vessel.volume.name)
            await vessel.storage.release(vessel.volume.state)
            self.free(vessel.id_range)

        await asyncio.shield(asyncio.get_running_loop().create_task(undo(), name=f"discard {vessel.volume.name}"))

    def _take_range(self) -> int:
        for number in range(self._next, RANGES_MAX):
            if number not in self._ranges:
                self._ranges.add(number)
                self._next = number + 1
                return number
        raise LimitReached("no range of user ids is free", limit="id_ranges")
