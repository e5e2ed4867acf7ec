"""Control groups: all processes of a session, so that they can be counted, frozen and ended together.

Version 2 of the kernel's interface, also where version 1 has the controllers beside it; else the freezer of version 1.
A guest is born in its group. Groups are named after volumes below one of our own, so that nothing else is ever touched.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable, Collection, Iterator
from hashlib import blake2b
from pathlib import Path

from sandlot.contracts.runtime import Hits, Used
from sandlot.host.runtimes.abandoned import end_abandoned, note
from sandlot.host.runtimes.controllers import Controllers
from sandlot.host.runtimes.hierarchies import find_hierarchies, freezing, hand_down, home, offered, read, weighs
from sandlot.host.runtimes.usage import read_used
from sandlot.model import Capability, CapabilityNotSupported, DeadlineExceeded, Resources, Unavailable, limits

Show = Callable[[Resources], Awaitable[None]]

_POLL_S = 0.0005
_POLL_S_MAX = 0.02
_END_ATTEMPTS = 50
_THAW = {1: ("freezer.state", "THAWED"), 2: ("cgroup.freeze", "0")}
_EAGER_LOOKS = 10  # what sleeps is frozen in less time than a timer takes


class Group:
    """All processes of one session, the guest among them."""

    def __init__(self, path: Path, version: int, guest: int, controllers: Controllers, show: Show) -> None:
        self._is_freezing = False
        self._path = path
        self._text = str(path)  # someone waits for what is written there, and paths of Python cost more than the write
        self._version = version
        self._guest = guest
        self._controllers = controllers
        self._show = show

    async def limit(self, resources: Resources) -> None:
        """Raises Unavailable."""
        self._controllers.limit(self._path.name, self._guest, resources)
        await self._show(resources)

    def hits(self, call: str = "") -> Hits:
        return self._controllers.hits(f"{self._path.name}/{call}" if call else self._path.name)

    def begin_call(self, call: str, resources: Resources) -> list[int]:
        return self._controllers.nest(self._path.name, call, resources)

    def end_call(self, call: str) -> None:
        self._controllers.unnest(self._path.name, call)

    def used(self) -> Used:
        memory = self._controllers.memory_used(self._path.name)
        return read_used(self._path if self._version == 2 else None, self.processes(), memory)

    async def count(self) -> int:
        return len(self.processes())

    async def is_alone(self) -> bool:
        """Whether nothing lives in the session but its guest."""
        return self._is_alone()

    def _is_alone(self) -> bool:
        return self.processes() == [self._guest]

    def freeze(self) -> None:
        """Begin to: what is on a processor may run on for a moment. Raises Unavailable."""
        self._write(*(("cgroup.freeze", "1") if self._version == 2 else ("freezer.state", "FROZEN")))
        self._is_freezing = True

    async def pause(self) -> None:
        """Nothing in the session moves when this returns. Raises DeadlineExceeded, Unavailable."""
        if not self._is_freezing:
            self.freeze()
        await self._wait("frozen", self.is_frozen)

    async def resume(self) -> None:
        self._is_freezing = False
        self._write(*_THAW[self._version])

    async def clear(self) -> None:
        """End everything but the guest. Raises DeadlineExceeded, Unavailable."""
        if self._is_alone():
            return
        # Frozen, nothing forks and nobody reaps: a number that is read stays whose it was.
        await self.pause()
        try:
            for pid in self.processes():
                if pid != self._guest:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
        finally:
            await self.resume()
        await self._wait("cleared", self._is_alone)

    def processes(self) -> list[int]:
        try:
            return sorted(map(int, _look(f"{self._text}/cgroup.procs").split()))
        except OSError as error:
            raise Unavailable(f"the processes of the session cannot be counted: {error.strerror}") from error

    def is_frozen(self) -> bool:
        try:
            if self._version == 1:
                return _look(f"{self._text}/freezer.state").strip() == b"FROZEN"
            return b"frozen 1" in _look(f"{self._text}/cgroup.events")
        except OSError as error:
            raise Unavailable(f"the session cannot be frozen: {error.strerror}") from error

    def _write(self, name: str, value: str) -> None:
        try:
            # Plainly: files of Python cost several times as much too.
            fd = os.open(f"{self._text}/{name}", os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(fd, value.encode())
            finally:
                os.close(fd)
        except OSError as error:
            raise Unavailable(f"the session cannot be frozen: {error.strerror}") from error

    async def _wait(self, what: str, done: Callable[[], bool]) -> None:
        loop = asyncio.get_running_loop()
        give_up, pause_s = loop.time() + limits.GUEST_DEADLINE_S, _POLL_S
        for _look in range(_EAGER_LOOKS):
            if done():
                return
            await asyncio.sleep(0)
        while not done():
            if loop.time() >= give_up:
                raise DeadlineExceeded(f"the session was not {what} in {limits.GUEST_DEADLINE_S:g} s")
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _POLL_S_MAX)


class Groups:
    """Makes and removes them. Without a hierarchy that we may use there are none, and what needs one is refused."""

    def __init__(self, data: Path, default_pids: int | None = None) -> None:
        self._name = "sandlot-" + blake2b(os.fsencode(data), digest_size=6).hexdigest()
        self._data = data
        self._base: Path | None = None
        self._version = 0
        self._ended: set[Path] = set()
        self.controllers = Controllers(self._name, default_pids)
        self.reason = "not looked for"

    def open(self) -> None:
        """Find out whether groups can be made here, and what they can limit."""
        hierarchies = find_hierarchies(read("/proc/self/mountinfo"), read("/proc/self/cgroup"))
        hierarchy = freezing(hierarchies)
        if hierarchy is None:
            self.reason = "no cgroup hierarchy is mounted that can freeze processes"
            return
        place = hierarchy.path
        if hierarchy.version == 2 and not hand_down(place):
            place = home(hierarchy, offered)
        base = place / self._name
        try:
            base.mkdir(exist_ok=True)
        except OSError as error:
            self.reason = f"{base} cannot be made: {error.strerror}"
            return
        note(base, self._data)
        self._base, self._version, self.reason = base, hierarchy.version, ""
        is_new = hierarchy.version == 2
        given = hand_down(base) if is_new else frozenset[str]()
        weighed = weighs(self._data, hierarchy.top if is_new else None)
        self.controllers.open(hierarchies, base if is_new else None, given, weighed=weighed)

    def close(self) -> None:
        if self._base:
            self._remove_ended()
            for base in (*self.controllers.bases(), self._base):
                with contextlib.suppress(OSError):  # groups of living guests are in it
                    base.rmdir()

    @property
    def is_ready(self) -> bool:
        return self._base is not None

    @property
    def abilities(self) -> frozenset[Capability]:
        """What groups alone can do; limits need more."""
        return frozenset({Capability.PAUSE}) if self.is_ready else frozenset()

    @property
    def capabilities(self) -> frozenset[Capability]:
        return self.abilities | self.controllers.capabilities

    def make(self, name: str) -> int | None:
        """A descriptor of a new group, for the guest to be born in; None where it is put there later, or cannot be."""
        if self._base is None:
            return None
        path = self._base / name
        try:
            path.mkdir(exist_ok=True)
            return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) if self._version == 2 else None
        except OSError as error:
            raise Unavailable(f"a group for the session cannot be made: {error.strerror}") from error

    def settle(self, name: str, pid: int, *, born_there: bool) -> None:
        """Put a guest into its group, unless it was born there."""
        if self._base is None or born_there:
            return
        try:
            (self._base / name).mkdir(exist_ok=True)
            (self._base / name / "cgroup.procs").write_text(str(pid))
        except OSError as error:
            raise Unavailable(f"the guest cannot be put into its group: {error.strerror}") from error

    def pin(self, name: str, pid: int, resources: Resources) -> None:
        try:
            self.controllers.pin(name, pid, resources)
        except OSError as error:
            raise Unavailable(f"the limits of the session cannot be set: {error.strerror}") from error

    def find(self, name: str, pid: int, show: Show) -> Group:
        """Raises CapabilityNotSupported where there are no groups."""
        if self._base is None:
            raise CapabilityNotSupported(
                f"processes of a session cannot be frozen here: {self.reason}", next_step="run `sandlot doctor`"
            )
        return Group(self._base / name, self._version, pid, self.controllers, show)

    def let_die(self, name: str, *, by_itself: bool) -> None:
        """What is frozen can be killed, but not under version 1, and it cannot end by itself."""
        if self._base is not None and (by_itself or self._version == 1):
            file, value = _THAW[self._version]
            with contextlib.suppress(OSError):
                (self._base / name / file).write_text(value)

    def remove(self, name: str) -> None:
        """Of a guest that has ended. The kernel may need a moment longer: then it is tried again with the next one."""
        if self._base is not None:
            self._ended |= {self._base / name, *self.controllers.leave(name)}
            self._remove_ended()

    def _remove_ended(self) -> None:
        for ended in tuple(self._ended):
            try:
                for call in ended.glob("c-*"):
                    call.rmdir()
                ended.rmdir()
            except FileNotFoundError:
                pass
            except OSError:
                continue
            self._ended.discard(ended)

    def _kill(self, group: Path) -> None:
        """Also what is frozen, and so did not notice that its host is gone."""
        with contextlib.suppress(OSError):
            if self._version == 2:
                (group / "cgroup.kill").write_text("1")
                return
            for pid in (group / "cgroup.procs").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            (group / _THAW[1][0]).write_text(_THAW[1][1])

    async def sweep(self, known: Collection[str]) -> None:
        """Remove what earlier engines left, with whatever is in it."""
        for name in self.strays(known):
            await self.end(name)
        if self._base is not None:
            for place in {base.parent for base in (self._base, *self.controllers.bases())}:
                await asyncio.to_thread(end_abandoned, place)

    def strays(self, known: Collection[str]) -> list[str]:
        """Names of groups without a guest."""
        return sorted({path.name for path in self._others(known)})

    async def end(self, name: str) -> None:
        """Of a guest that is gone: whatever is left in it ends too."""
        if self._base is not None:
            self._kill(self._base / name)
            self._ended |= {path for path in self._others(()) if path.name == name}
            for _attempt in range(_END_ATTEMPTS):
                self._remove_ended()
                if name not in {path.name for path in self._ended}:
                    return
                await asyncio.sleep(_POLL_S_MAX)

    def _others(self, known: Collection[str]) -> Iterator[Path]:
        for base in (self._base, *self.controllers.bases()) if self._base is not None else ():
            with contextlib.suppress(FileNotFoundError):  # nothing was limited there
                yield from (Path(e.path) for e in os.scandir(base) if e.is_dir() and e.name not in known)


def _look(path: str) -> bytes:
    """All of it: a group may have more processes than one page has numbers."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        read = os.read(fd, 4096)
        found = read
        while read:
            read = os.read(fd, 65536)
            found += read
        return found
    finally:
        os.close(fd)
