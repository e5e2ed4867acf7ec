"""What a session with limits is told of the machine: files that take the place of the kernel's own."""

import re
from collections.abc import Sequence

from sandlot.model import Resources

_CPU_LISTS = ("online", "possible", "present")


def views(resources: Resources, cpus: Sequence[int], cpuinfo: str, swap_free_bytes: int) -> dict[str, str]:
    """Contents by path. `cpus`: the processors of the session, if not all; `cpuinfo`: what the machine says of all.

    There is no /sys in a session. The C library counts processors in one file of it, so that file is made."""
    told: dict[str, str] = {}
    if resources.memory_bytes is not None:
        told["/proc/meminfo"] = _meminfo(resources.memory_bytes, min(resources.swap_bytes or 0, swap_free_bytes))
    if cpus:
        told["/proc/cpuinfo"] = _cpuinfo(cpuinfo, cpus)
        listed = ",".join(map(str, cpus)) + "\n"
        told |= {f"/sys/devices/system/cpu/{name}": listed for name in _CPU_LISTS}
    return told


def _meminfo(memory_bytes: int, swap_bytes: int) -> str:
    """Nothing is in use in it: it is written once, and does not move with what the session does."""
    memory, swap = memory_bytes // 1024, swap_bytes // 1024
    zeros = ("Buffers", "Cached", "SwapCached", "Active", "Inactive", "Shmem", "Slab", "SReclaimable", "SUnreclaim")
    known = {"MemTotal": memory, "MemFree": memory, "MemAvailable": memory, **dict.fromkeys(zeros, 0)}
    known |= {"SwapTotal": swap, "SwapFree": swap}
    return "".join(f"{name + ':':<15} {value:>8} kB\n" for name, value in known.items())


def _cpuinfo(text: str, cpus: Sequence[int]) -> str:
    kept = [
        block.strip() + "\n\n"
        for block in text.split("\n\n")
        if (found := re.search(r"^processor\s*:\s*([0-9]+)$", block, re.MULTILINE)) and int(found[1]) in cpus
    ]
    return "".join(kept)
