"""Where this process stands in the kernel's control groups, and whether it may make groups of its own there."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sandlot.cli.checks import Check, Section, Verdict, read

_NEEDED = ("cpu", "memory", "pids")
_FOR = "limits of cpu, memory and processes"
_V1_CONTROLLERS = {"cpu", "cpuacct", "cpuset", "memory", "pids", "freezer", "blkio", "devices"}


@dataclass(frozen=True, slots=True)
class Group:
    version: int
    controllers: frozenset[str]
    path: Path  # the group of this process, as it is mounted here


def find(mounts: str, own: str) -> list[Group]:
    """`mounts` and `own`: the texts of /proc/self/mountinfo and /proc/self/cgroup."""
    found: dict[Path, Group] = {}
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        place, kind = before.split(" "), after.split(" ")
        if len(place) < 5 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        is_new = kind[0] == "cgroup2"
        controllers = frozenset[str]() if is_new else frozenset(kind[2].split(",")) & _V1_CONTROLLERS
        if not is_new and not controllers:
            continue  # a hierarchy with a name and nothing to control
        at = _own_path(own, controllers)
        path = Path(_plain(place[4]), _below(at, _plain(place[3])))
        if is_new:
            controllers = frozenset(read(path / "cgroup.controllers").split())
        # What is mounted twice at the same place is what was mounted last.
        found[path] = Group(2 if is_new else 1, controllers, path)
    return list(found.values())


def _own_path(own: str, controllers: frozenset[str]) -> str:
    """Without controllers: the path in version 2."""
    for line in own.splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if (controllers & set(names.split(","))) or (not controllers and number == "0" and not names):
            return path
    return "/"


def _below(path: str, root: str) -> str:
    """The way from what is mounted to our group. One that lies outside cannot be seen; then it is the top itself."""
    if ".." in path.split("/"):
        return "."
    if root == "/":
        return path.lstrip("/")
    return path[len(root) :].lstrip("/") if path == root or path.startswith(root + "/") else "."


def _plain(path: str) -> str:
    """The kernel writes spaces and such as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), path)


def layout(groups: list[Group]) -> str:
    versions = sorted({group.version for group in groups})
    return " and ".join(f"v{version}" for version in versions) or "none"


def look() -> Iterator[Check]:
    known = find(read("/proc/self/mountinfo"), read("/proc/self/cgroup"))
    groups = [group for group in known if os.access(group.path, os.F_OK)]  # others are covered by another mount
    if not groups:
        step = "mount them below /sys/fs/cgroup, or start the container with the machine's (docker: --cgroupns=host)"
        yield Check(Section.LIMITS, "cgroups", Verdict.NOTE, f"none is mounted; needed for {_FOR}", step)
        return
    yield Check(Section.LIMITS, "cgroups", Verdict.OK, f"{layout(groups)}: {_controllers(groups)}")
    holders = {name: group for name in _NEEDED for group in groups if name in group.controllers}
    missing = [name for name in _NEEDED if name not in holders]
    if missing:
        step = "enable them in the group above (cgroup.subtree_control), or in the kernel's command line"
        yield Check(Section.LIMITS, "controllers", Verdict.NOTE, f"{', '.join(missing)} not to be had here", step)
    trouble = {why: group.path for group in holders.values() if (why := try_child(group.path))}
    if trouble:
        told = "; ".join(f"{why} in {path}" for why, path in trouble.items())
        step = "run as root, or have the group handed over to you (systemd: Delegate=yes)"
        yield Check(Section.LIMITS, "child groups", Verdict.NOTE, f"cannot be made: {told}; needed for {_FOR}", step)
    elif holders:
        yield Check(Section.LIMITS, "child groups", Verdict.OK, f"can be made, for {', '.join(holders)}")


def _controllers(groups: list[Group]) -> str:
    names = sorted({name for group in groups for name in group.controllers})
    return " ".join(names) or "no controllers"


def try_child(path: Path) -> str:
    """Make a group and remove it. Why that does not work; empty when it does."""
    child = path / f"sandlot-doctor-{os.getpid()}"
    try:
        child.mkdir()
        child.rmdir()
    except OSError as error:
        return error.strerror or str(error)
    return ""
