"""Where groups are made, on machines with version 1, version 2 and both."""

import os
from pathlib import Path

from sandlot.host.runtimes.hierarchies import find_hierarchies, freezing, hand_down, home, offered, weighs

OLD = """\
31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
37 31 0:34 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer
40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd
"""
OLD_OWN = "4:memory:/lxc/a\n3:freezer:/\n2:cpu,cpuacct:/b c\n1:name=systemd:/\n"
NEW = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n"
BOTH = OLD + "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"


def test_version_one_has_a_place_per_controller() -> None:
    found = {min(h.controllers): h for h in find_hierarchies(OLD, OLD_OWN)}
    assert found["memory"].path == Path("/sys/fs/cgroup/memory/lxc/a")
    assert (found["cpu"].path, found["cpu"].controllers) == (
        Path("/sys/fs/cgroup/cpu,cpuacct/b c"),
        {"cpu", "cpuacct"},
    )
    freezer = freezing(list(found.values()))
    assert freezer is not None
    assert (freezer.path, freezer.version) == (Path("/sys/fs/cgroup/freezer"), 1)


def test_version_two_has_one_place() -> None:
    (found,) = find_hierarchies(NEW, "0::/user.slice/u.scope\n")
    assert (found.path, found.top, found.version) == (
        Path("/sys/fs/cgroup/user.slice/u.scope"),
        Path("/sys/fs/cgroup"),
        2,
    )
    assert freezing([found]) == found


def test_both_freeze_by_version_two_and_limit_by_version_one() -> None:
    found = find_hierarchies(BOTH, OLD_OWN + "0::/\n")
    freezer = freezing(found)
    assert freezer is not None
    assert (freezer.path, freezer.version) == (Path("/sys/fs/cgroup/unified"), 2)
    assert {"memory"} in [h.controllers for h in found if h.version == 1]


def test_a_mount_that_shows_a_part_of_the_tree() -> None:
    mounts = "35 31 0:32 /docker/x /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    (found,) = find_hierarchies(mounts, "4:memory:/docker/x/y\n")
    assert found.path == Path("/sys/fs/cgroup/memory/y")


def test_nothing_is_found_where_nothing_is_mounted() -> None:
    assert find_hierarchies("", OLD_OWN) == []
    assert find_hierarchies(OLD, "") == []
    assert freezing([]) is None


def test_groups_are_made_where_they_get_controllers() -> None:
    (hierarchy,) = find_hierarchies(NEW, "0::/system.slice/sandlot.service\n")
    top, full = Path("/sys/fs/cgroup"), frozenset({"cpu", "memory", "pids", "io"})
    given = {top: full, top / "system.slice": full}
    assert home(hierarchy, lambda path: given.get(path, frozenset())) == top / "system.slice"
    assert home(hierarchy, lambda path: full) == hierarchy.path
    assert home(hierarchy, lambda path: frozenset({"pids"})) == hierarchy.path


def test_only_what_a_group_has_is_handed_down(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu pids rdma\n")
    assert hand_down(tmp_path) == {"+pids"}  # a plain file keeps the last word; the kernel adds them up
    assert offered(tmp_path / "gone") == frozenset()


def test_a_disk_without_a_scheduler_of_weights_weighs_nothing(tmp_path: Path) -> None:
    (tmp_path / "io.cost.qos").write_text("999:999 enable=1 ctrl=auto\n")
    device = tmp_path.stat().st_dev
    scheduler = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/queue/scheduler")
    has_bfq = scheduler.is_file() and "[bfq]" in scheduler.read_text()
    assert weighs(tmp_path, tmp_path) is has_bfq
    (tmp_path / "io.cost.qos").write_text(f"{os.major(device)}:{os.minor(device)} enable=1 ctrl=auto\n")
    assert weighs(tmp_path, tmp_path)
