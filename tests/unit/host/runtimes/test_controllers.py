"""Which values go into which files; and that they get there, in a tree of plain directories."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandlot.host.runtimes.controllers import Controllers, Setting, settings
from sandlot.host.runtimes.hierarchies import LIMITING, Hierarchy
from sandlot.model import Capability, Resources, Unavailable, limits

NEW: dict[str, int] = dict.fromkeys(LIMITING, 2)
OLD: dict[str, int] = dict.fromkeys(LIMITING, 1)
ALL = Resources(1.5, 512 * limits.MIB, None, 100, 64, 1024, 50)


def told(resources: Resources, versions: dict[str, int], cpus: tuple[int, ...] = ()) -> dict[str, str]:
    return {setting.file: setting.value for setting in settings(resources, versions, cpus)}


def test_version_two() -> None:
    assert told(ALL, NEW, (0, 3)) == {
        "cpu.max": "150000 100000",
        "cpuset.cpus": "0,3",
        "memory.max": "536870912",
        "memory.swap.max": "1024",
        "pids.max": "101",
        "io.weight": "default 50",
    }


def test_version_one() -> None:
    assert told(ALL, OLD, (1,)) == {
        "cpu.cfs_quota_us": "150000",
        "cpuset.cpus": "1",
        "memory.limit_in_bytes": "536870912",
        "memory.memsw.limit_in_bytes": "536871936",
        "pids.max": "101",
        "blkio.bfq.weight": "50",
        "blkio.weight": "50",
    }


def test_what_is_not_asked_for_is_not_written() -> None:
    assert told(Resources(), NEW) == told(Resources(open_files=64), OLD) == {}
    assert told(Resources(cpus=1), {"cpu": 2}, (0,)) == {"cpu.max": "100000 100000"}  # without a cpuset


def test_memory_means_memory_without_swap_unless_asked_for() -> None:
    asked = list(settings(Resources(memory_bytes=limits.GIB), OLD, ()))
    assert Setting("memory", "memory.memsw.limit_in_bytes", str(limits.GIB), True) in asked
    asked = list(settings(Resources(memory_bytes=limits.GIB, swap_bytes=0), NEW, ()))
    assert Setting("memory", "memory.swap.max", "0", False) in asked


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """Directories as the kernel has them: files appear with the group, and only those that it knows."""
    for group, files in {
        "pids/own/ours/s": ("pids.max", "cgroup.procs"),
        "memory/own/ours/s": ("memory.limit_in_bytes", "cgroup.procs"),
        "unified/ours/s": ("cpu.max", "cpuset.cpus"),
    }.items():
        (tmp_path / group).mkdir(parents=True)
        for name in files:
            (tmp_path / group / name).touch()
    return tmp_path


def opened(machine: Path) -> Controllers:
    controllers = Controllers("ours")
    old = [Hierarchy(machine / n / "own", 1, frozenset({n}), machine / n) for n in ("pids", "memory")]
    new = Hierarchy(machine / "unified", 2, frozenset(), machine / "unified")
    controllers.open([*old, new], machine / "unified" / "ours", frozenset({"cpu"}), weighed=False)
    return controllers


@pytest.fixture
def pid() -> Iterator[int]:
    """Of a process of ours: what is limited is real, only the hierarchies are not."""
    with subprocess.Popen(["sleep", "600"]) as sleeper:
        yield sleeper.pid
        sleeper.kill()


def test_each_controller_is_used_where_it_is(machine: Path, pid: int) -> None:
    controllers = opened(machine)
    able = {Capability.LIMIT_CPUS, Capability.LIMIT_MEMORY, Capability.LIMIT_PIDS, Capability.LIMIT_OPEN_FILES}
    assert controllers.capabilities == able
    controllers.limit("s", pid, Resources(cpus=0.5, memory_bytes=limits.GIB, pids=9))
    written = {str(path.relative_to(machine)): path.read_text() for path in machine.rglob("*.*") if path.stat().st_size}
    assert written == {
        "unified/ours/s/cpu.max": "50000 100000",
        "memory/own/ours/s/memory.limit_in_bytes": str(limits.GIB),
        "memory/own/ours/s/cgroup.procs": str(pid),
        "pids/own/ours/s/pids.max": "10",
        "pids/own/ours/s/cgroup.procs": str(pid),
    }
    assert controllers.bases() == {machine / "pids/own/ours", machine / "memory/own/ours"}
    theirs = {machine / "pids/own/ours/s", machine / "memory/own/ours/s"}
    assert controllers.leave("s") == theirs
    assert controllers.leave("s") == theirs, "of an earlier engine, whose guest died"
    assert controllers.leave("other") == set()


def test_a_limit_that_is_asked_for_and_unknown_to_the_kernel_is_an_error(machine: Path, pid: int) -> None:
    with pytest.raises(Unavailable):
        opened(machine).limit("s", pid, Resources(memory_bytes=limits.GIB, swap_bytes=0))


def test_a_limit_that_no_group_of_the_machine_can_hold_is_an_error(pid: int) -> None:
    controllers = Controllers("ours")
    controllers.open([], None, frozenset(), weighed=False)
    with pytest.raises(Unavailable, match="no control group of this machine holds pids"):
        controllers.limit("s", pid, Resources(pids=9))


def test_what_was_met_is_counted(machine: Path, pid: int) -> None:
    controllers = opened(machine)
    assert controllers.hits("s") == (0, 0)
    controllers.limit("s", pid, Resources(memory_bytes=limits.GIB, pids=9))
    (machine / "memory/own/ours/s/memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    (machine / "pids/own/ours/s/pids.events").write_text("max 12\n")
    assert controllers.hits("s") == (3, 12)
