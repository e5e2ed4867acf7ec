"""Limits of sessions, held by the kernel's controllers, whichever version of control groups has them.

Version 2 has one group for everything, the session's own. Version 1 has a tree of groups per controller: a session has
a group only where it has a limit."""

import contextlib
import errno
import itertools
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from sandlot.contracts.runtime import Hits
from sandlot.host.runtimes.hierarchies import LIMITING, Hierarchy, find_hierarchies, read
from sandlot.host.runtimes.views import views
from sandlot.model import Capability, Resources, Unavailable

_PERIOD_US = 100_000
_OLD_NAMES = {"io": "blkio"}
# In version 1 the weight has the name of what goes by it.
_OLD_WEIGHTS = ("blkio.bfq.weight", "blkio.weight")
_CAPABILITIES = {
    "cpu": Capability.LIMIT_CPUS,
    "memory": Capability.LIMIT_MEMORY,
    "pids": Capability.LIMIT_PIDS,
    "io": Capability.LIMIT_IO,
}


class Setting(NamedTuple):
    """One value for one file of one controller. An optional one may be unknown to this kernel."""

    controller: str
    file: str
    value: str
    optional: bool = False


def settings(
    resources: Resources, versions: Mapping[str, int], cpus: Sequence[int], *, beside: int = 1
) -> Iterator[Setting]:
    """What to write for limits. `versions`: which version has each controller; `cpus`: the processors to use, if only
    some; `beside`: processes that do not count, such as the guest."""
    if resources.cpus is not None:
        quota = max(1000, round(resources.cpus * _PERIOD_US))
        if versions.get("cpu") == 2:
            yield Setting("cpu", "cpu.max", f"{quota} {_PERIOD_US}")
        else:
            yield Setting("cpu", "cpu.cfs_quota_us", str(quota))
        if cpus and "cpuset" in versions:
            yield Setting("cpuset", "cpuset.cpus", ",".join(map(str, cpus)))
    if resources.memory_bytes is not None:
        memory, swap = resources.memory_bytes, resources.swap_bytes or 0
        optional = resources.swap_bytes is None  # where swap is not counted, it is not asked for either
        if versions.get("memory") == 2:
            yield Setting("memory", "memory.max", str(memory))
            yield Setting("memory", "memory.swap.max", str(swap), optional)
        else:
            yield Setting("memory", "memory.limit_in_bytes", str(memory))
            yield Setting("memory", "memory.memsw.limit_in_bytes", str(memory + swap), optional)
    if resources.pids is not None:
        yield Setting("pids", "pids.max", str(resources.pids + beside))
    if resources.io_weight is not None:
        if versions.get("io") == 2:
            yield Setting("io", "io.weight", f"default {resources.io_weight}")
        else:
            yield from (Setting("io", name, str(resources.io_weight), True) for name in _OLD_WEIGHTS)


@dataclass(frozen=True, slots=True)
class _Place:
    base: Path  # holds the groups of our sessions
    version: int


class Controllers:
    def __init__(self, name: str, default_pids: int | None = None) -> None:
        self._name = name
        self._default_pids = default_pids
        self._places: dict[str, _Place] = {}
        self._groups: dict[str, dict[str, Path]] = {}  # of version 1, by session and controller
        self._turn = itertools.count(os.getpid())
        self._borne = default_pids is not None
        self._cpus: dict[str, list[int]] = {}  # of sessions that have not all
        self._capabilities: frozenset[Capability] = frozenset({Capability.LIMIT_OPEN_FILES})

    def open(
        self, hierarchies: Sequence[Hierarchy], unified: Path | None, given: frozenset[str], *, weighed: bool
    ) -> None:
        """`unified`: our groups of version 2, which get the controllers `given`."""
        for controller in LIMITING:
            if unified and controller in given:
                self._places[controller] = _Place(unified, 2)
                continue
            old = _OLD_NAMES.get(controller, controller)
            for hierarchy in hierarchies:
                if old in hierarchy.controllers and os.access(hierarchy.path, os.W_OK):
                    self._places[controller] = _Place(hierarchy.path / self._name, 1)
        self._borne = self._default_pids is not None and self._versions().get("pids") != 2
        able = {_CAPABILITIES[name] for name in self._places if name in _CAPABILITIES}
        if not weighed:
            able.discard(Capability.LIMIT_IO)
        if able and all(place.version == 1 for place in self._places.values()):
            # In version 2 a group that holds a process cannot have limited children, and the guest is in it.
            able.add(Capability.LIMIT_CALLS)
        if Capability.LIMIT_MEMORY in able and self._counts_swap():
            able.add(Capability.LIMIT_SWAP)
        self._capabilities |= able

    def _counts_swap(self) -> bool:
        place = self._places["memory"]
        if place.version == 2:
            return Path("/proc/swaps").exists()
        return (place.base.parent / "memory.memsw.limit_in_bytes").exists()

    @property
    def capabilities(self) -> frozenset[Capability]:
        return self._capabilities

    def _versions(self) -> dict[str, int]:
        return {controller: place.version for controller, place in self._places.items()}

    def born_with(self, resources: Resources) -> int | None:
        """How many processes the guest's own user namespace may have, if that is what limits them. So the default is
        held where a group would have to be entered: that may take the kernel milliseconds, and this takes none."""
        if resources.pids is None or not self._borne or resources.pids != self._default_pids:
            return None
        return resources.pids + 1  # the guest is one too

    def prepare(self, name: str, resources: Resources) -> list[int]:
        """Set limits, before the guest is there. Gives descriptors of the groups that it has to enter, each a file that
        takes the number of a process. Raises Unavailable."""
        entered: list[int] = []
        try:
            for group in self._set(name, resources):
                entered.append(os.open(group / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC))
        except OSError as error:
            for fd in entered:
                os.close(fd)
            raise Unavailable(f"the limits of the session cannot be set: {error.strerror}") from error
        return entered

    def nest(self, name: str, call: str, resources: Resources) -> list[int]:
        """Limits of one call, below those of its session. Raises Unavailable."""
        versions = self._versions()
        fds: list[int] = []
        try:
            for controller, file, value, optional in settings(resources, versions, (), beside=0):
                place = self._place(controller)
                group = self._groups.setdefault(name, {}).setdefault(controller, place.base / name) / call
                if controller not in self._groups.setdefault(f"{name}/{call}", {}):
                    group.mkdir(parents=True, exist_ok=True)
                    self._groups[f"{name}/{call}"][controller] = group
                    fds.append(os.open(group / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC))
                try:
                    _write(group / file, value)
                except OSError:
                    if not optional:
                        raise
        except OSError as error:
            for fd in fds:
                os.close(fd)
            self.unnest(name, call)
            raise Unavailable(f"the limits of the call cannot be set: {error.strerror}") from error
        return fds

    def unnest(self, name: str, call: str) -> None:
        """Groups in which something still runs go with their session."""
        for group in self._groups.pop(f"{name}/{call}", {}).values():
            with contextlib.suppress(OSError):
                group.rmdir()

    def limit(self, name: str, pid: int, resources: Resources) -> None:
        """Set limits of a guest that lives. Raises Unavailable."""
        fds = self.prepare(name, resources)
        try:
            for fd in fds:
                os.write(fd, str(pid).encode())
            self.pin(name, pid, resources)
        except OSError as error:
            raise Unavailable(f"the guest cannot be put under its limits: {error.strerror}") from error
        finally:
            for fd in fds:
                os.close(fd)

    def pin(self, name: str, pid: int, resources: Resources) -> None:
        """Where no group can tell which processors to use: all that a guest starts inherits it. Raises OSError."""
        if "cpuset" not in self._places and (cpus := self._choose(name, resources)):
            os.sched_setaffinity(pid, cpus)

    def _set(self, name: str, resources: Resources) -> set[Path]:
        """The groups of version 1 that it took."""
        versions = self._versions()
        if self.born_with(resources):
            resources = resources.without("pids")
        made: dict[str, Path] = {}
        for controller, file, value, optional in settings(resources, versions, self._choose(name, resources)):
            place = self._place(controller)
            group = place.base / name
            if place.version == 1 and controller not in made:
                self._make(controller, place, group)
                made[controller] = group
            try:
                _write(group / file, value)
            except OSError:
                if not optional:
                    raise
        self._groups.setdefault(name, {}).update(made)
        return set(made.values())

    def _place(self, controller: str) -> _Place:
        """Raises OSError: a limit was let through that nothing here can hold."""
        if controller not in self._places:
            raise OSError(errno.EOPNOTSUPP, f"no control group of this machine holds {controller}")
        return self._places[controller]

    def _make(self, controller: str, place: _Place, group: Path) -> None:
        try:
            group.mkdir(exist_ok=True)
        except FileNotFoundError:
            place.base.mkdir(exist_ok=True)
            if controller == "cpuset":
                _write(place.base / "cpuset.mems", read(place.base.parent / "cpuset.effective_mems").strip())
                _write(place.base / "cpuset.cpus", read(place.base.parent / "cpuset.effective_cpus").strip())
            group.mkdir(exist_ok=True)
        if controller == "cpuset":
            _write(group / "cpuset.mems", read(place.base / "cpuset.mems").strip())

    def _choose(self, name: str, resources: Resources) -> list[int]:
        """As many processors as the limit, rounded up, taken in turn; none when it is all that there are."""
        if resources.cpus is None:
            return []
        have, wanted = sorted(os.sched_getaffinity(0)), math.ceil(resources.cpus)
        if wanted >= len(have):
            return []
        if len(self._cpus.get(name, ())) != wanted:
            first = next(self._turn)
            self._cpus[name] = sorted(have[(first + step) % len(have)] for step in range(wanted))
        return self._cpus[name]

    def views(self, name: str, resources: Resources) -> dict[str, str]:
        """What a session is told of the machine instead of what is true of it."""
        if resources.cpus is None and resources.memory_bytes is None:
            return {}
        swap_bytes = sum(int(line.split()[2]) * 1024 for line in read("/proc/swaps").splitlines()[1:])
        return views(resources, self._choose(name, resources), read("/proc/cpuinfo"), swap_bytes)

    def adopt(self, name: str, pid: int) -> None:
        """A guest of an earlier engine, which may have been in other groups than this one."""
        for hierarchy in find_hierarchies(read("/proc/self/mountinfo"), read(f"/proc/{pid}/cgroup")):
            if hierarchy.version == 1 and hierarchy.path.name == name:
                new_names = {old: new for new, old in _OLD_NAMES.items()}
                groups = {new_names.get(controller, controller): hierarchy.path for controller in hierarchy.controllers}
                self._groups.setdefault(name, {}).update(groups)

    def hits(self, name: str) -> Hits:
        return Hits(
            self._count(name, "memory", {1: "memory.oom_control", 2: "memory.events"}, "oom_kill"),
            self._count(name, "pids", {1: "pids.events", 2: "pids.events"}, "max"),
        )

    def _count(self, name: str, controller: str, files: Mapping[int, str], key: str) -> int:
        place = self._places.get(controller)
        if place is None:
            return 0
        group = place.base / name if place.version == 2 else self._groups.get(name, {}).get(controller)
        if group is None:
            return 0
        words = read(group / files[place.version]).split()
        return int(words[words.index(key) + 1]) if key in words else 0

    def memory_used(self, name: str) -> int | None:
        """Of the group of a session, without what the kernel would give back at once; None where nobody counts it."""
        place = self._places.get("memory")
        if place is None:
            return None
        group = place.base / name if place.version == 2 else self._groups.get(name, {}).get("memory")
        if group is None:
            return None
        used = read(group / ("memory.current" if place.version == 2 else "memory.usage_in_bytes"))
        words = read(group / "memory.stat").split()
        idle = "inactive_file" if place.version == 2 else "total_inactive_file"
        given_back = int(words[words.index(idle) + 1]) if idle in words else 0
        return max(0, int(used) - given_back) if used else None

    def leave(self, name: str) -> set[Path]:
        """The groups that a guest had, to be removed when it has ended. One that was found dead cannot say which."""
        self._cpus.pop(name, None)
        known = set(self._groups.pop(name, {}).values())
        return known or {base / name for base in self.bases() if (base / name).is_dir()}

    def bases(self) -> set[Path]:
        """What holds our groups of version 1; made when the first is needed."""
        return {place.base for place in self._places.values() if place.version == 1}


def _write(path: Path, value: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)
