"""What the doctor reads out of the kernel's texts, of machines that are not here."""

import os
from pathlib import Path

import pytest

from sandlot.cli import cgroups, machine, rights
from sandlot.cli.checks import Check, Section, Verdict, guarded

OK, MISSING, NOTE = Verdict.OK, Verdict.MISSING, Verdict.NOTE


# ---- rights ------------------------------------------------------------------------------------------------------


def status(effective: int, seccomp: str = "0") -> str:
    return f"Name:\tpython\nCapPrm:\t0000000000000000\nCapEff:\t{effective:016x}\nSeccomp:\t{seccomp}\n"


ALL = sum(1 << bit for bit in rights.NEEDED)


def test_capabilities() -> None:
    assert rights.capabilities(status(ALL), is_root=True).verdict is OK
    assert rights.capabilities(status((1 << 41) - 1), is_root=True).verdict is OK
    none = rights.capabilities(status(0), is_root=True)
    assert (none.verdict, "--privileged" in none.next_step) == (MISSING, True)
    assert rights.capabilities(status(0), is_root=False).next_step == "run as root"
    assert rights.capabilities("Name: python\n", is_root=True).verdict is MISSING


@pytest.mark.parametrize(("bit", "name"), rights.NEEDED.items())
def test_each_capability_is_told_when_it_is_missing(bit: int, name: str) -> None:
    check = rights.capabilities(status(ALL & ~(1 << bit)), is_root=True)
    assert (check.verdict, check.detail) == (MISSING, f"without {name}")
    assert f"--cap-add={name.removeprefix('CAP_')}" in check.next_step


def test_users() -> None:
    assert rights.user(0, "         0          0 4294967295\n").verdict is OK
    contained = rights.user(0, "         0     100000      65536\n")
    assert (contained.verdict, "user namespace" in contained.detail) == (MISSING, True)
    assert "not root" in rights.user(1000, "0 0 4294967295").detail
    assert rights.user(0, "").verdict is NOTE


def test_filters() -> None:
    known = "kill_process kill_thread trap errno user_notif trace log allow"
    assert rights.seccomp(status(0), known).verdict is OK
    contained = rights.seccomp(status(0, "2"), known)
    assert (contained.verdict, bool(contained.next_step)) == (NOTE, True)
    assert rights.seccomp("Name: python\n", "").verdict is MISSING


# ---- control groups ----------------------------------------------------------------------------------------------

V2 = "25 1 0:22 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
HYBRID = (
    "30 29 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "31 29 0:28 / /sys/fs/cgroup/cpu,cpuacct rw shared:1 - cgroup cgroup rw,cpu,cpuacct\n"
    "32 29 0:29 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd\n"
    "33 29 0:30 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
)
OWN = "9:name=systemd:/init\n4:memory:/user/7\n3:cpu,cpuacct:/\n0::/user.slice\n"


def test_where_a_process_stands() -> None:
    (group,) = cgroups.find(V2, "0::/user.slice/session-1\n")
    assert (group.version, group.path) == (2, Path("/sys/fs/cgroup/user.slice/session-1"))
    groups = {str(group.path): group for group in cgroups.find(HYBRID, OWN)}
    assert set(groups) == {
        "/sys/fs/cgroup/memory/user/7",
        "/sys/fs/cgroup/cpu,cpuacct",
        "/sys/fs/cgroup/unified/user.slice",
    }
    assert groups["/sys/fs/cgroup/cpu,cpuacct"].controllers == {"cpu", "cpuacct"}
    assert cgroups.layout(list(groups.values())) == "v1 and v2"


@pytest.mark.parametrize(
    ("root", "own", "expected"),
    [
        ("/", "/", "/cg"),
        ("/docker/abc", "/docker/abc", "/cg"),
        ("/docker/abc", "/docker/abc/sub", "/cg/sub"),
        ("/docker/abc", "/docker/abcdef", "/cg"),
        ("/", "/../../other", "/cg"),
        ("/docker/abc", "/elsewhere", "/cg"),
    ],
)
def test_where_a_process_in_a_container_stands(root: str, own: str, expected: str) -> None:
    (group,) = cgroups.find(f"1 1 0:1 {root} /cg rw - cgroup2 none rw\n", f"0::{own}\n")
    assert group.path == Path(expected)


def test_odd_texts() -> None:
    assert cgroups.find("", "") == []
    assert cgroups.find("nonsense\n- - -\n1 2 3 4 5 - cgroup\n", "::::\n\nx") == []
    assert cgroups.layout([]) == "none"
    (group,) = cgroups.find("1 1 0:1 / /with\\040space rw - cgroup2 none rw\n", "")
    assert group.path == Path("/with space")


def test_a_child_group_is_tried_and_removed(tmp_path: Path) -> None:
    assert cgroups.try_child(tmp_path) == ""
    assert list(tmp_path.iterdir()) == []
    assert cgroups.try_child(tmp_path / "gone") == "No such file or directory"


# ---- kernel and disk ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "release", "verdict"),
    [
        ("Linux", "6.15.0", OK),
        ("Linux", "7.0-rc1", OK),
        ("Linux", "6.18.44-fc-v445", OK),
        ("Linux", "6.14.9", MISSING),
        ("Linux", "5.10.0-30-amd64", MISSING),
        ("Linux", "odd", MISSING),
        ("Darwin", "25.0.0", MISSING),
    ],
)
def test_kernels(name: str, release: str, verdict: Verdict) -> None:
    check = machine.version(name, release)
    assert check.verdict is verdict
    assert bool(check.next_step) is (verdict is MISSING)


def test_architectures() -> None:
    assert machine.architecture("x86_64").verdict is machine.architecture("aarch64").verdict is OK
    assert "x86_64" in machine.architecture("riscv64").next_step


def test_a_data_directory_on_an_overlay() -> None:
    mounts = "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 0:50 / /merged rw shared:5 - overlay overlay rw,lowerdir=x\n"
    check = machine.filesystem(mounts, os.makedev(0, 50))
    assert (check.verdict, "volume" in check.next_step) == (MISSING, True)
    assert machine.filesystem(mounts, os.makedev(8, 1)).detail == "ext4"
    assert machine.filesystem("", os.makedev(8, 1)).verdict is OK


def test_the_nearest_directory(tmp_path: Path) -> None:
    assert machine.nearest(tmp_path / "a" / "b") == tmp_path
    assert machine.nearest(tmp_path) == tmp_path


def test_a_machine_that_surprises_us_is_told_of() -> None:
    def look():
        yield Check(Section.KERNEL, "one", OK, "fine")
        raise ZeroDivisionError("odd")

    first, second = guarded(Section.KERNEL, "kernel", look)
    assert first.detail == "fine"
    assert (second.verdict, "ZeroDivisionError: odd" in second.detail, bool(second.next_step)) == (NOTE, True, True)
