"""All processes of a guest that has no control group, because the machine has none or we may not use it.

They are found by their parents: a guest adopts every orphan below it, so whatever its commands start stays below it.
They are stopped by signals. A signal can be undone by whoever may send one, and a parent can see it, so this is for the
moment of a copy and not for a pause. Who was stopped is noted first: an engine that dies leaves the next one to go on.
"""

import asyncio
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from sandlot.contracts.runtime import Hits, Used
from sandlot.host.runtimes.usage import read_used
from sandlot.model import CapabilityNotSupported, DeadlineExceeded, Resources, Unavailable, limits

_POLL_S = 0.002
_STOPPED = frozenset("Tt")
_DEAD = frozenset("ZXx")
_CLEAN_LOOKS = 2  # one that began behind the back of a look is seen by the next
_VFORKS = frozenset(("kernel_clone", "wait_for_vfork_done", "_do_fork"))  # where kernels say that such a parent waits
_STOP_PENDING = 1 << (signal.SIGSTOP - 1)


class Member(NamedTuple):
    pid: int
    began: int  # with the pid it names one process and no other


class Descendants:
    """Below one guest; the guest itself is none of them."""

    def __init__(self, guest: int, note: Path) -> None:
        self._guest = guest
        self._note = note

    async def limit(self, resources: Resources) -> None:
        del resources
        raise _no_groups()

    def hits(self, call: str = "") -> Hits:
        del call  # nothing is limited, so nothing is met
        return Hits()

    def begin_call(self, call: str, resources: Resources) -> Sequence[int]:
        del call, resources
        raise _no_groups()

    def end_call(self, call: str) -> None:
        pass

    def used(self) -> Used:
        return read_used(None, [self._guest, *(member.pid for member, _states in self._look())], None)

    def processes(self) -> list[int]:
        """Blocking. The guest is none of them."""
        return [member.pid for member, _states in self._look()]

    async def count(self) -> int:
        return 1 + sum(1 for _member, states in await asyncio.to_thread(list, self._look()) if not states <= _DEAD)

    async def is_alone(self) -> bool:
        return not any(True for _member, states in self._look() if not states <= _DEAD)

    def freeze(self) -> None:
        """Send the signals once; whoever forks meanwhile is met by `pause`."""
        self._stop()

    async def pause(self) -> None:
        """Nothing below the guest moves when this returns. Raises DeadlineExceeded, Unavailable."""
        give_up, clean = asyncio.get_running_loop().time() + limits.GUEST_DEADLINE_S, 0
        while clean < _CLEAN_LOOKS:
            clean = 0 if self._stop() else clean + 1
            if not clean:
                if asyncio.get_running_loop().time() > give_up:
                    raise DeadlineExceeded(f"the session was not stopped in {limits.GUEST_DEADLINE_S:g} s")
                await asyncio.sleep(_POLL_S)

    def _stop(self) -> bool:
        """Whether anyone still moved."""
        still = _STOPPED | _DEAD
        moving = [member for member, states in self._look() if not (states <= still or _waits_for_child(member.pid))]
        if moving:
            known = self._noted()
            self._write_note([*known, *(member for member in moving if member not in known)])
            for member in moving:
                _send(member, signal.SIGSTOP)
        return bool(moving)

    async def resume(self) -> None:
        """Whoever we stopped goes on, also when another engine did. Who had stopped by himself stays so."""
        for member in self._noted():
            with suppress(Unavailable):  # it was not ours to stop either
                _send(member, signal.SIGCONT)
        self._note.unlink(missing_ok=True)

    async def clear(self) -> None:
        """End everything but the guest. Raises DeadlineExceeded, Unavailable."""
        give_up = asyncio.get_running_loop().time() + limits.GUEST_DEADLINE_S
        try:
            # Stopped first: what stands still starts nothing.
            await self.pause()
            while living := [member for member, states in self._look() if not states <= _DEAD]:
                for member in living:
                    _send(member, signal.SIGKILL)
                if asyncio.get_running_loop().time() > give_up:
                    raise DeadlineExceeded(f"the session was not cleared in {limits.GUEST_DEADLINE_S:g} s")
                await asyncio.sleep(_POLL_S)
        finally:
            await self.resume()

    def _look(self) -> Iterator[tuple[Member, frozenset[str]]]:
        """Who is there, and what their threads do."""
        parents: dict[int, int] = {}
        for name in os.listdir("/proc"):
            if name.isdecimal() and (found := _stat(f"/proc/{name}/stat")):
                parents[int(name)] = int(found[1])
        ours = {self._guest}
        while more := {pid for pid, parent in parents.items() if parent in ours and pid not in ours}:
            ours |= more
        for pid in sorted(ours - {self._guest}):
            if found := _stat(f"/proc/{pid}/stat"):
                yield Member(pid, int(found[19])), _thread_states(pid)

    def _noted(self) -> list[Member]:
        with suppress(FileNotFoundError):
            lines = self._note.read_text().splitlines()
            return [Member(int(pid), int(began)) for pid, began in (line.split() for line in lines)]
        return []

    def _write_note(self, members: Sequence[Member]) -> None:
        """Whole or not at all."""
        try:
            fresh = self._note.with_suffix(".new")
            fresh.write_text("".join(f"{member.pid} {member.began}\n" for member in members))
            fresh.replace(self._note)
        except OSError as error:
            raise Unavailable(f"the session cannot be stopped: {error.strerror}") from error


def _stat(path: str) -> list[str]:
    """The fields behind the name, which may hold anything; none of a process that is gone."""
    with suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            text = os.read(fd, 4096)
        finally:
            os.close(fd)
        return text[text.rfind(b")") + 2 :].decode("ascii", "replace").split()
    return []


def _thread_states(pid: int) -> frozenset[str]:
    with suppress(OSError):
        found = (_stat(f"/proc/{pid}/task/{thread}/stat") for thread in os.listdir(f"/proc/{pid}/task"))
        return frozenset(each[0] for each in found if each)
    return frozenset()


def _waits_for_child(pid: int) -> bool:
    """Whether each of its threads stands, or waits in vfork for a child to execute something, told to stop when it is
    back. The child may be one that we stopped: then this one never shows as stopped, and runs nothing either.
    """
    with suppress(OSError):
        threads = [f"/proc/{pid}/task/{thread}" for thread in os.listdir(f"/proc/{pid}/task")]
        return _has_stop_pending(pid) and all(_stands_or_waits(thread) for thread in threads)
    return False


def _stands_or_waits(thread: str) -> bool:
    found = _stat(f"{thread}/stat")
    state = found[0] if found else "X"
    return state in _STOPPED | _DEAD or (state == "D" and Path(thread, "wchan").read_text() in _VFORKS)


def _has_stop_pending(pid: int) -> bool:
    for line in Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines():
        if line.startswith("ShdPnd:"):
            return bool(int(line.split()[1], 16) & _STOP_PENDING)
    return False


def _send(member: Member, number: signal.Signals) -> None:
    """To this process and no other: a number may be given again while we look."""
    try:
        handle = os.pidfd_open(member.pid)
    except ProcessLookupError:
        return
    try:
        found = _stat(f"/proc/{member.pid}/stat")
        if found and int(found[19]) == member.began:
            signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return
    except PermissionError:
        raise Unavailable(
            f"process {member.pid} of the session belongs to another user", next_step="end it first"
        ) from None
    finally:
        os.close(handle)


def _no_groups() -> CapabilityNotSupported:
    return CapabilityNotSupported("there are no control groups here", next_step="run `sandlot doctor`")
