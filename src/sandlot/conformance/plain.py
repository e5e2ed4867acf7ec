"""What a plain filesystem does, asked of the files of a session: what a storage does not do of it is one of its
`lacks`, by the name of the check."""

import asyncio
import secrets
from collections.abc import Mapping

from sandlot.conformance.checks import Broken, Check, Stage, equal, expect
from sandlot.model import CallRequest, Capability, Resources, SnapshotRequest

MIB = 1 << 20
_SNAPSHOTS = (Capability.SNAPSHOTS,)
# gVisor closes what was removed some seconds later, and its sync is not the storage's: btrfs then counts what is free
# at its next commit, which are 30 s apart.
_LOOKS, _LOOK_S = 200, 0.3


async def hard_links(stage: Stage) -> None:
    """Names of one file stay names of one file across turns: what is written through one is read through the other."""
    await stage.sh("echo old > a; ln a b")
    await close(stage)
    equal((await stage.sh("echo new > a; cat b")).text, "new")


async def inode_numbers(stage: Stage) -> None:
    """A file that is written has the same inode number after the next turn."""
    await stage.sh("echo old > a")
    await close(stage)
    before = (await stage.sh("echo more >> a; stat -c %i a")).text
    await close(stage)
    equal((await stage.sh("stat -c %i a")).text, before)


_MAPPED = """
import mmap
with open("a", "rb") as file, open("a", "r+b") as other:
    seen = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    other.write(b"new")
    other.flush()
    print(seen[:3].decode())
"""


async def mapped_readers(stage: Stage) -> None:
    """Who has mapped a file of an earlier turn sees what is written to it."""
    await stage.sh("echo old > a")
    await close(stage)
    equal((await stage.run("python3", "-c", _MAPPED)).text, "new")


async def first_write(stage: Stage) -> None:
    """A small write to a large file of an earlier turn costs a small amount of space."""
    await stage.sh(f"head -c {8 * MIB} /dev/urandom > a")
    await close(stage)
    before = await _used(stage)
    await stage.sh("printf x >> a; sync a")
    grown = await _used(stage) - before
    expect(grown < 4 * MIB, f"{grown} bytes for a few that were written")


async def full_copies(stage: Stage) -> None:
    """A snapshot after which nothing was written needs next to nothing."""
    await stage.sh(f"head -c {8 * MIB} /dev/urandom > a")
    await close(stage)
    space = await close(stage)
    expect(space < 4 * MIB, f"{space} bytes for a snapshot after which nothing was written")


_LINKED = """
import os
names = {}
for entry in os.scandir("/usr/bin"):
    if entry.is_file(follow_symlinks=False):
        names.setdefault(entry.inode(), []).append(entry.path)
one, other = next(found for found in names.values() if len(found) > 1)[:2]
with open(one, "r+b") as file: file.write(b"changed")
with open(other, "rb") as file: print(file.read(7).decode(errors="replace"))
"""


async def template_links(stage: Stage) -> None:
    """Two names of one file of the template stay names of one file."""
    ran = await stage.run("python3", "-c", _LINKED, user="root")
    equal((ran.text, ran.result.exit_code), ("changed", 0))


async def freed_space(stage: Stage) -> None:
    """What a session deletes is not counted any more, a moment later."""
    before = await _used(stage)
    await stage.sh(f"head -c {16 * MIB} /dev/urandom > a; sync -f .; rm a; sync -f .")
    grown = 0
    for _ in range(_LOOKS):
        if (grown := await _used(stage) - before) < 8 * MIB:
            return
        await asyncio.sleep(_LOOK_S)
    raise Broken(f"{grown} bytes are kept of 16 MiB that were deleted")


async def limit_counts_history(stage: Stage) -> None:
    """What older snapshots keep does not count towards the limit of a session."""
    other = await stage.another(resources=Resources(disk_bytes=48 * MIB))
    for number in range(3):
        ran = await other.sh(f"rm -f a; head -c {20 * MIB} /dev/urandom > a && sync a")
        expect(ran.result.exit_code == 0, f"20 MiB of 48 were refused after {number} snapshots of as much")
        await close(other)


async def living_processes(stage: Stage) -> None:
    """A snapshot costs nothing more because processes live."""
    await stage.sh(f"head -c {8 * MIB} /dev/urandom > a")
    await close(stage)
    async with stage.host.call(CallRequest(stage.session.session_id, ("sleep", "1000"), detach=True)) as stream:
        async for _started in stream:
            break
    await stage.sh(f"head -c {8 * MIB} /dev/urandom > b")
    await close(stage)
    # The same files once more, now in two places: where they were written, and in the copy that was taken.
    second = await close(stage)
    expect(second < 4 * MIB, f"{second} bytes for a snapshot after which nothing was written")


async def _used(stage: Stage) -> int:
    return (await stage.host.get(stage.session.session_id)).space_used or 0


async def close(stage: Stage) -> int:
    """A snapshot; the bytes that it needs and none before it."""
    name = "p-" + secrets.token_hex(4)
    await stage.host.create_snapshot(SnapshotRequest(stage.session.session_id, name))
    await asyncio.sleep(0)
    for shot in await stage.host.list_snapshots(stage.session.session_id):
        if shot.name == name:
            return shot.space_bytes or 0
    raise Broken("a snapshot that was made is not told")


PLAIN_CHECKS: tuple[Check[Stage], ...] = (
    *(
        Check(run, _SNAPSHOTS)
        for run in (hard_links, inode_numbers, mapped_readers, first_write, full_copies, living_processes)
    ),
    Check(freed_space),
    Check(template_links, (Capability.OWN_ROOT, Capability.USERS)),
    Check(limit_counts_history, (Capability.SNAPSHOTS, Capability.LIMIT_DISK)),
)
# Of every storage: the kernel stacks its volumes over the template.
OF_ROOTS = {"template_links": "a hard link to a file of the template breaks when one of its names is written"}
# By runtime and check: what is not the storage's. An entry whose check passes fails the run.
OF_RUNTIMES: Mapping[str, Mapping[str, str]] = {
    "gvisor": {
        "files_are_those_of_a_filesystem": "gVisor counts the holes of a file among what it takes on disk",
        "every_kind_of_file_is_kept": "gVisor has no extended attributes of users",
    },
}
# What a storage lacks that a runtime makes up for: gVisor maps files by itself.
MADE_UP_FOR: Mapping[str, frozenset[str]] = {"gvisor": frozenset({"mapped_readers"})}
