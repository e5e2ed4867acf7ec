"""Control groups: all processes of a session, so that they can be counted, frozen and ended together.

Version 2 of the kernel's interface, also where version 1 has the controllers beside it; else the freezer of version 1.
A guest is born in its group. Groups are named after volumes below one of our own, so that nothing else is ever touched.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from sandlot.model import CapabilityNotSupported, DeadlineExceeded, Unavailable, limits

_POLL_S = 0.0005
_POLL_S_MAX = 0.02


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """Where groups can be made."""

    path: Path
    version: int


def find_hierarchy(mounts: str, own: str) -> Hierarchy | None:
    """From the texts of /proc/self/mountinfo and /proc/self/cgroup."""
    places = dict(_own_groups(own))
    found: dict[int, Hierarchy] = {}
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        kind, options = after.split(" ")[0], after.split(" ")[-1].split(",")
        words = before.split(" ")
        if len(words) < 5:
            continue
        point = words[4].encode().decode("unicode_escape")
        if kind == "cgroup2" and "" in places:
            found.setdefault(2, Hierarchy(Path(point + _below(places[""], words[3])), 2))
        elif kind == "cgroup" and "freezer" in options and "freezer" in places:
            found.setdefault(1, Hierarchy(Path(point + _below(places["freezer"], words[3])), 1))
    return found.get(2) or found.get(1)


def _own_groups(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        _number, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            yield controller, path


def _below(path: str, root: str) -> str:
    """A group's path as seen below a mount that shows the groups from `root` on."""
    inside = path.removeprefix(root) if root != "/" and path.startswith(root) else path
    return "" if inside == "/" else inside


class Group:
    """All processes of one session, the guest among them."""

    def __init__(self, path: Path, version: int, guest: int) -> None:
        self._path = path
        self._version = version
        self._guest = guest

    def is_alone(self) -> bool:
        """Whether nothing lives in the session but its guest."""
        return self._processes() == [self._guest]

    async def pause(self) -> None:
        """Nothing in the session moves when this returns. Raises DeadlineExceeded, Unavailable."""
        self._write(*(("cgroup.freeze", "1") if self._version == 2 else ("freezer.state", "FROZEN")))
        await self._wait("frozen", self._is_frozen)

    async def resume(self) -> None:
        self._write(*(("cgroup.freeze", "0") if self._version == 2 else ("freezer.state", "THAWED")))

    async def clear(self) -> None:
        """End everything but the guest. Raises DeadlineExceeded, Unavailable."""
        if self.is_alone():
            return
        # Frozen, nothing forks and nobody reaps: a number that is read stays whose it was.
        await self.pause()
        try:
            for pid in self._processes():
                if pid != self._guest:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
        finally:
            await self.resume()
        await self._wait("cleared", self.is_alone)

    def _processes(self) -> list[int]:
        try:
            return sorted(map(int, (self._path / "cgroup.procs").read_text().split()))
        except OSError as error:
            raise Unavailable(f"the processes of the session cannot be counted: {error.strerror}") from error

    def _is_frozen(self) -> bool:
        try:
            if self._version == 1:
                return (self._path / "freezer.state").read_text().strip() == "FROZEN"
            return "frozen 1" in (self._path / "cgroup.events").read_text()
        except OSError as error:
            raise Unavailable(f"the session cannot be frozen: {error.strerror}") from error

    def _write(self, name: str, value: str) -> None:
        try:
            (self._path / name).write_text(value)
        except OSError as error:
            raise Unavailable(f"the session cannot be frozen: {error.strerror}") from error

    async def _wait(self, what: str, done: Callable[[], bool]) -> None:
        loop = asyncio.get_running_loop()
        give_up, pause_s = loop.time() + limits.GUEST_DEADLINE_S, _POLL_S
        while not done():
            if loop.time() >= give_up:
                raise DeadlineExceeded(f"the session was not {what} in {limits.GUEST_DEADLINE_S:g} s")
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _POLL_S_MAX)


class Groups:
    """Makes and removes them. Without a hierarchy that we may use there are none, and what needs one is refused."""

    def __init__(self, data: Path) -> None:
        self._name = "sandlot-" + blake2b(os.fsencode(data), digest_size=6).hexdigest()
        self._base: Path | None = None
        self._version = 0
        self._ended: set[str] = set()
        self.reason = "not looked for"

    def open(self) -> None:
        """Find out whether groups can be made here."""
        hierarchy = find_hierarchy(_read("/proc/self/mountinfo"), _read("/proc/self/cgroup"))
        if hierarchy is None:
            self.reason = "no cgroup hierarchy is mounted that can freeze processes"
            return
        base = hierarchy.path / self._name
        try:
            base.mkdir(exist_ok=True)
        except OSError as error:
            self.reason = f"{base} cannot be made: {error.strerror}"
            return
        self._base, self._version, self.reason = base, hierarchy.version, ""

    def close(self) -> None:
        if self._base:
            for ended in tuple(self._ended):
                self.remove(ended)
            with contextlib.suppress(OSError):  # groups of living guests are in it
                self._base.rmdir()

    @property
    def is_ready(self) -> bool:
        return self._base is not None

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

    def find(self, name: str, pid: int) -> Group:
        """Raises CapabilityNotSupported where there are no groups."""
        if self._base is None:
            raise CapabilityNotSupported(
                f"processes of a session cannot be frozen here: {self.reason}", next_step="run `sandlot doctor`"
            )
        return Group(self._base / name, self._version, pid)

    def remove(self, name: str) -> None:
        """Of a guest that has ended. The kernel may need a moment longer: then it is tried again with the next one."""
        self._ended.add(name)
        for ended in tuple(self._ended):
            try:
                if self._base is not None:
                    (self._base / ended).rmdir()
            except FileNotFoundError:
                pass
            except OSError:
                continue
            self._ended.discard(ended)

    def sweep(self, known: Collection[str]) -> None:
        """Remove what earlier engines left empty."""
        if self._base is not None:
            for entry in os.scandir(self._base):
                if entry.is_dir(follow_symlinks=False) and entry.name not in known:
                    self.remove(entry.name)


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
