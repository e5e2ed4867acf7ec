"""Sessions that sleep: their processes are on disk, with their memory, and use nothing of the machine but that.

What is recorded has happened. While a runtime writes an image, its sandbox ends whether that works or not; so an engine
that dies meanwhile leaves a mark, and the next one waits for the end and goes on from there. A session that is recorded
as asleep and has a guest was being woken: its processes have run, so it is awake.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

from sandlot.contracts.runtime import Guest
from sandlot.host import failpoints
from sandlot.host.guest_streams import GuestStream
from sandlot.host.history import REPLACED, History
from sandlot.host.lifecycle import Lifecycle
from sandlot.host.parts import HostParts
from sandlot.host.rests import CHECKPOINT, Rests
from sandlot.host.room import room
from sandlot.host.session import Session
from sandlot.model import (
    Capability,
    DeadlineExceeded,
    InvalidState,
    LimitReached,
    PauseReason,
    SandlotError,
    SessionState,
    Unavailable,
    limits,
)
from sandlot.model.capability import need

_POLL_S = 0.05


class Sleeping:
    def __init__(self, lifecycle: Lifecycle, parts: HostParts) -> None:
        self._lifecycle = lifecycle
        self._parts = parts
        self._memories = parts.memories
        self._rests = Rests(parts.journal)
        self._history = History(parts.journal)

    def need(self, session: Session) -> None:
        """Raises CapabilityNotSupported."""
        runtime = self._parts.runtimes[session.row.runtime]
        step = "use the runtime `gvisor`, or leave the memory out"
        need(runtime.capabilities, Capability.MEMORY, f"the runtime {runtime.name}", step)

    async def sleep(self, session: Session, reason: str, since: float) -> None:
        """With the gate shut. When it raises, the session goes on as before, or has failed; when its disk limit has no
        room for its memory, one that was frozen runs."""
        row, runtime = session.row, self._parts.runtimes[session.row.runtime]
        image = await asyncio.to_thread(self._memories.make)
        carried = tuple(session.connections)
        session.hold_calls()
        session.part_calls()
        try:
            await self._rests.begin_checkpoint(row.session_id, image)
            await failpoints.reach("checkpoint: begun")
            if row.state is SessionState.PAUSED:
                await runtime.group(row.volume).resume()  # what is frozen cannot be asked
            await _all_over(carried)
            await runtime.checkpoint(row.volume, self._memories.path(image))
        except BaseException as error:  # undone, then raised again
            await asyncio.shield(self._undo(session, image, error))
            raise
        await failpoints.reach("checkpoint: written")
        await asyncio.to_thread(self._memories.sync, image)
        await self._rests.set_asleep(row.session_id, reason, since)
        await failpoints.reach("checkpoint: recorded")
        asleep = {"state": SessionState.PAUSED, "reason": reason, "paused_at": since, "memory": image}
        session.guest, session.row = None, replace(session.row, **asleep)
        try:
            await self._need_room(session)
        except LimitReached:
            await self.wake(session)
            raise

    async def _need_room(self, session: Session) -> None:
        """A disk limit counts memory that is kept, beside the files. How much it is, is known when it is written."""
        most, volume = session.resources.disk_bytes, session.volume
        if most is None or volume is None:
            return
        images = {session.row.memory, *(point.memory for point in session.snapshots.values())} - {""}
        kept = await asyncio.to_thread(lambda: sum(map(self._memories.used, images)))
        files = await self._parts.storages[session.row.storage].usage(volume.state)
        if files + kept > most:
            raise LimitReached(
                f"{kept} bytes of memory beside {files} of files are more than the disk limit of {most} bytes",
                next_step="delete files or snapshots, pause without memory, or give the session more disk",
                limit="disk_bytes",
                session_id=session.row.session_id,
            )

    async def _undo(self, session: Session, image: str, error: BaseException) -> None:
        await asyncio.to_thread(self._memories.remove, image)
        await self._rests.forget_memory(session.row.session_id)
        guest = session.guest
        if guest is None or not guest.is_alive():
            session.on_wedged(f"its memory could not be kept, and its processes are gone: {error}")
            return
        try:
            await session.resume_calls(guest)
            if session.row.state is SessionState.ACTIVE:
                session.release_calls(0.0)
            else:
                await self._parts.runtimes[session.row.runtime].group(session.row.volume).pause()
        except SandlotError as lost:
            session.on_wedged(lost.message)

    @asynccontextmanager
    async def asleep(self, session: Session) -> AsyncGenerator[str]:
        """For a moment, with the gate shut. Gives an image that is removed again when the block raises. Raises
        InvalidState for one that is frozen, and what `sleep` and `wake` raise."""
        is_awake = session.row.state is SessionState.ACTIVE
        if is_awake:
            await self.sleep(session, PauseReason.MOMENT, time.time())
        elif not session.row.memory:
            raise InvalidState(
                f"session {session.row.session_id} is frozen, and its memory cannot be read",
                next_step="resume it, or pause it with its memory",
                session_id=session.row.session_id,
            )
        try:
            async with self.lent(session.row.memory) as image:
                yield image
        finally:
            if is_awake:
                await self.wake(session)

    @asynccontextmanager
    async def lent(self, memory: str) -> AsyncGenerator[str]:
        """Another name for an image, removed again when the block raises."""
        image = await asyncio.to_thread(self._memories.copy, memory)
        try:
            yield image
        except BaseException:  # undone, then raised again
            await asyncio.to_thread(self._memories.remove, image)
            raise

    async def come_back(self, session: Session, image: str) -> None:
        """It is recorded as asleep with this image: the guest that it has ends, and another one comes from there."""
        asleep = {"state": SessionState.PAUSED, "reason": PauseReason.MOMENT, "paused_at": time.time(), "memory": image}
        session.row = replace(session.row, **asleep)
        session.is_leaving = True
        try:
            await self._parts.runtimes[session.row.runtime].stop(session.row.volume)
        finally:
            session.is_leaving, session.guest = False, None
        await self._history.end(session.row.session_id)
        await failpoints.reach("restore: replaced")
        await self.wake(session)

    async def wake(self, session: Session) -> None:
        """With the gate shut. When it raises, the session still sleeps, or has failed. Raises Unavailable,
        DeadlineExceeded, CapabilityNotSupported."""
        row, runtime = session.row, self._parts.runtimes[session.row.runtime]
        plan = replace(session.start_plan(), image=self._memories.path(row.memory))
        lost: list[str] = []

        def ended(reason: str) -> None:
            lost.append(reason)
            if session.row.state is SessionState.ACTIVE:
                self._lifecycle.guest_ended(session, reason)

        try:
            async with room(self._parts.storages[row.storage], session):
                guest = await runtime.start(plan, ended)
        except BaseException as error:  # undone, then raised again
            with suppress(SandlotError):
                await asyncio.shield(runtime.stop(row.volume))
            if isinstance(error, SandlotError):
                step = "try again; a fork of it has its files, without what ran"
                raise Unavailable(f"its memory could not be brought back: {error.message}", next_step=step) from error
            raise
        await failpoints.reach("restore: started")
        await self.woken(session, guest)
        if lost:
            self._lifecycle.guest_ended(session, lost[0])
            raise Unavailable(f"the session ended when it was brought back: {lost[0]}")

    async def woken(self, session: Session, guest: Guest) -> None:
        """Its processes run again: nobody needs the image any more."""
        row = session.row
        paused_s = max(0.0, time.time() - row.paused_at)
        await self._rests.set_resumed(row.session_id, paused_s, row.reason)
        await failpoints.reach("restore: recorded")
        session.row = replace(row, state=SessionState.ACTIVE, reason="", paused_at=0.0, memory="")
        session.active_at = time.time()
        await asyncio.to_thread(self._memories.remove, row.memory)
        try:
            await session.resume_calls(guest)
        except SandlotError as error:
            session.on_wedged(error.message)
            raise
        session.release_calls(paused_s)

    async def forget(self, session: Session) -> None:
        """It goes on without what ran."""
        if session.row.memory:
            await self._rests.forget_memory(session.row.session_id)
            await asyncio.to_thread(self._memories.remove, session.row.memory)
            session.row = replace(session.row, memory="")

    # ---- what an earlier engine left ---------------------------------------------------------------------------

    async def take_over(self, session: Session, guest: Guest | None) -> bool:
        """Whether it sleeps, or has been woken; else it is as if nobody had touched its memory."""
        row = session.row
        if row.changing == CHECKPOINT:
            if not await self._has_ended(session, guest):
                await asyncio.to_thread(self._memories.remove, row.memory)
                await self._rests.forget_memory(row.session_id)
                session.row = replace(row, memory="", changing="")
                return False
            await self._parts.runtimes[row.runtime].stop(row.volume)
            since = row.paused_at or time.time()
            await asyncio.to_thread(self._memories.sync, row.memory)
            await self._rests.set_asleep(row.session_id, row.reason, since)
            session.row, guest = replace(row, state=SessionState.PAUSED, paused_at=since, changing=""), None
        elif row.changing:
            if row.changing == REPLACED:
                await self._parts.runtimes[row.runtime].stop(row.volume)
                guest = None
            # Else a snapshot that was not recorded; nobody stands on its files.
            await self._history.end(row.session_id)
            session.row = replace(row, changing="")
        if guest is not None:
            await self.woken(session, guest)
            return True
        await session.rest(None)
        if session.row.reason == PauseReason.MOMENT:
            with suppress(SandlotError):  # it sleeps, and whoever resumes it is told why
                await self.wake(session)
        return True

    async def _has_ended(self, session: Session, guest: Guest | None) -> bool:
        """Wait for a sandbox whose image is being written. One that answers does nothing of the kind."""
        if not await asyncio.to_thread(self._memories.is_begun, session.row.memory):
            return False
        if guest is None:
            return True
        session.is_leaving = True  # its end is no failure
        try:
            with suppress(SandlotError):
                await guest.known()
                return False
            async with asyncio.timeout(limits.MEMORY_DEADLINE_S):
                while guest.is_alive():  # noqa: ASYNC110 - nothing else tells of it
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            return False
        finally:
            session.is_leaving = False
        return True


async def _all_over(carried: Sequence[GuestStream]) -> None:
    """gVisor ends, now and then, when connections come back that were there when it was kept. Raises
    DeadlineExceeded."""
    try:
        async with asyncio.timeout(limits.GUEST_DEADLINE_S):
            for connection in carried:
                await connection.over()
    except TimeoutError:
        raise DeadlineExceeded("connections to ports of the session did not end", next_step="try again") from None
