"""What processes use, as the kernel counts it: by their group where it counts, else one by one."""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from sandlot.contracts.runtime import Used

_TICKS = os.sysconf("SC_CLK_TCK")
_TIMES = slice(11, 15)  # user and system, of the process and of the children that it waited for
_RESIDENT = (b"RssAnon:", b"RssShmem:")
_SANDBOX_MEMORY = "/memfd:runsc-memory"


def read_used(group: Path | None, pids: Iterable[int], memory_bytes: int | None) -> Used:
    """Blocking. `group`: of version 2, which counts processors for whoever is and was in it; `memory_bytes`: what a
    controller counts, if one does."""
    known = tuple(pids)
    cpu_s = None if group is None else _cpu_of_group(group)
    return Used(
        _cpu_of_processes(known) if cpu_s is None else cpu_s,
        _resident(known) if memory_bytes is None else memory_bytes,
    )


def _cpu_of_group(group: Path) -> float | None:
    words = _read(f"{group}/cpu.stat").split()
    return int(words[words.index(b"usage_usec") + 1]) / 1e6 if b"usage_usec" in words else None


def _cpu_of_processes(pids: Iterable[int]) -> float:
    """Of those that live, and of those that they waited for: a guest waits for everyone who has lost his parent."""
    ticks = 0
    for pid in pids:
        text = _read(f"/proc/{pid}/stat")
        fields = text[text.rfind(b")") + 2 :].split()  # the name may hold anything
        ticks += sum(map(int, fields[_TIMES]))
    return ticks / _TICKS


def _resident(pids: Iterable[int]) -> int:
    """Memory that no file stands behind. What processes share since a fork counts for each of them."""
    return sum(_lines(pid, _RESIDENT) for pid in pids)


def own_memory(pids: Iterable[int]) -> int:
    """The same, without what processes share by its name."""
    return sum(_lines(pid, _RESIDENT[:1]) for pid in pids)


def memory_of_sandbox(pids: Iterable[int]) -> int:
    """What gVisor holds for the programs of a session: one file in memory, of which little is mapped at a time."""
    found: dict[int, int] = {}
    for pid in pids:
        with suppress(OSError), os.scandir(f"/proc/{pid}/fd") as entries:
            for entry in entries:
                if os.readlink(entry.path).startswith(_SANDBOX_MEMORY):
                    told = os.stat(entry.path)
                    found[told.st_ino] = told.st_blocks * 512
    return sum(found.values())


def _lines(pid: int, names: tuple[bytes, ...]) -> int:
    lines = _read(f"/proc/{pid}/status").splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(names))


def network_of(pid: int) -> tuple[int, int] | None:
    """Bytes that came and went where a process is, its loopback left out; None when there is nothing else."""
    came, went, found = 0, 0, False
    for line in _read(f"/proc/{pid}/net/dev").splitlines()[2:]:
        name, _colon, rest = line.partition(b":")
        numbers = rest.split()
        if name.strip() != b"lo" and len(numbers) > 8:
            came, went, found = came + int(numbers[0]), went + int(numbers[8]), True
    return (came, went) if found else None


def _read(path: str) -> bytes:
    """Empty for what is gone."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        found = b""
        while piece := os.read(fd, 65536):
            found += piece
        return found
    except OSError:
        return b""
    finally:
        os.close(fd)
