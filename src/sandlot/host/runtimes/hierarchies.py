"""Where control groups can be made: version 1, version 2, or both beside each other."""

import contextlib
import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

LIMITING = ("cpu", "cpuset", "memory", "pids", "io")
_NEEDED = frozenset({"cpu", "memory", "pids"})


@dataclass(frozen=True, slots=True)
class Hierarchy:
    path: Path  # the group of this process, as it is mounted here
    version: int
    controllers: frozenset[str]  # version 2 tells its own in a file
    top: Path  # where it is mounted


def find_hierarchies(mounts: str, own: str) -> list[Hierarchy]:
    """From the texts of /proc/self/mountinfo and /proc/self/cgroup."""
    places = dict(_own_groups(own))
    found: dict[tuple[int, frozenset[str]], Hierarchy] = {}
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        kind, options = after.split(" ")[0], after.split(" ")[-1].split(",")
        words = before.split(" ")
        if len(words) < 5 or kind not in ("cgroup", "cgroup2"):
            continue
        point = words[4].encode().decode("unicode_escape")
        names = frozenset({""} if kind == "cgroup2" else options).intersection(places)
        if names:
            path = point + _below(places[min(names)], words[3])
            version = 2 if kind == "cgroup2" else 1
            found.setdefault((version, names), Hierarchy(Path(path), version, names - {""}, Path(point)))
    return list(found.values())


def freezing(hierarchies: Collection[Hierarchy]) -> Hierarchy | None:
    """The one whose groups can be frozen: version 2, else the freezer of version 1."""
    able = [h for h in hierarchies if h.version == 2 or "freezer" in h.controllers]
    return max(able, key=lambda hierarchy: hierarchy.version, default=None)


def home(hierarchy: Hierarchy, offers: Callable[[Path], frozenset[str]]) -> Path:
    """Where groups of version 2 are made: in our own group, or in the nearest above whose children get controllers. A
    group that holds processes cannot give them to its children, so with most service managers it is one above.

    `offers` tells which controllers the children of a group get."""
    above = [path for path in hierarchy.path.parents if path.is_relative_to(hierarchy.top)]
    for path in (hierarchy.path, *above):
        if offers(path) >= _NEEDED:
            return path
    return hierarchy.path


def offered(path: Path) -> frozenset[str]:
    return frozenset(read(path / "cgroup.subtree_control").split())


def hand_down(path: Path) -> frozenset[str]:
    """Give the children of a group what it has itself, as far as that goes. Tells which of it they get."""
    for controller in LIMITING:
        if controller in read(path / "cgroup.controllers").split():
            with contextlib.suppress(OSError):  # processes are in it
                (path / "cgroup.subtree_control").write_text(f"+{controller}")
    return offered(path)


def weighs(data: Path, top: Path | None) -> bool:
    """Whether the disk of a directory goes by the weights of groups."""
    number = os.stat(data).st_dev
    device = f"{os.major(number)}:{os.minor(number)}"
    place = Path("/sys/dev/block") / device
    scheduler = read(place / "queue" / "scheduler") or read(place / ".." / "queue" / "scheduler")
    costs = read(top / "io.cost.qos") if top else ""
    return "[bfq]" in scheduler or any(
        line.startswith(f"{device} ") and "enable=1" in line for line in costs.splitlines()
    )


def read(path: str | Path) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _own_groups(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        _number, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            yield controller, path


def _below(path: str, root: str) -> str:
    """A group's path as seen below a mount that shows the groups from `root` on."""
    inside = path.removeprefix(root) if root != "/" and path.startswith(root) else path
    return "" if inside == "/" else inside
