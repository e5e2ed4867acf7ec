"""`python -m tests.soak.leaks [--rounds N]`: many sessions come and go; afterwards the machine is as it was before."""

import argparse
import asyncio
import gc
import os
import shutil
import sqlite3
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from sandlot.config.settings import load
from sandlot.host.kernel import Identity
from sandlot.host.service import SandboxHostService
from sandlot.model import (
    CallRequest,
    FileWrite,
    ForkRequest,
    RollbackRequest,
    SessionSpec,
    SnapshotRequest,
    TurnRequest,
)
from sandlot.wiring.embedded import build
from tests.ahead import networks_ahead
from tests.conftest import run
from tests.own_mounts import enter_own_mounts

ROOT = Path(__file__).parents[2]
AT_ONCE = 4
SETTLE_S = 60
TABLES = ("sessions", "calls", "snapshots", "turns", "answers")
FOLDERS = ("volumes", "trash", "outputs", "run")
# What may grow, and by how much at most; everything else is as it was. An allocator keeps some of what it once had.
BOUNDS = {
    "memory of the engine, KiB": 16 << 10,
    "memory of the keeper, KiB": 512,
    "threads of the engine": 32,
    "journal, KiB": 4 << 10,
}


def memory_kib(pid: int | str) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))


def count_open(pid: int | str) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def count_mounts(pid: int | str) -> int:
    return len(Path(f"/proc/{pid}/mountinfo").read_text().splitlines())


def count_objects() -> int:
    """Whatever the engine made for a session and still knows. Users of sessions are remembered, up to a number."""
    gc.collect()
    return sum(1 for one in gc.get_objects() if _is_of_the_engine(one))


def _is_of_the_engine(one: object) -> bool:
    return type(one).__module__.startswith("sandlot.host") and not isinstance(one, Identity)


def group_folders(data: Path) -> list[Path]:
    """The control groups of an engine's sessions and their folder in each hierarchy, the innermost first."""
    name = "sandlot-" + blake2b(os.fsencode(data), digest_size=6).hexdigest()
    # Others may come and go meanwhile: a walk passes over what vanishes.
    found = (Path(folder) for folder, _folders, _files in os.walk("/sys/fs/cgroup"))
    return sorted((folder for folder in found if name in folder.parts), reverse=True)


def count_groups(data: Path) -> int:
    return sum(1 for folder in group_folders(data) if not folder.name.startswith("sandlot-"))


async def inventory(host: SandboxHostService, data: Path) -> Counter[str]:
    """Everything that a session uses."""
    keeper = host.keeper_pid
    lifecycle, journal = host._lifecycle, host._journal  # pyright: ignore[reportPrivateUsage] - they know all

    def rows(db: sqlite3.Connection) -> dict[str, int]:
        return {f"rows of {name}": db.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in TABLES}

    children = Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()
    return Counter(
        {
            **await journal.transact(rows),
            **{f"entries of {name}/": len(list((data / name).iterdir())) for name in FOLDERS},
            "id ranges": len(lifecycle._vessels._ranges),  # pyright: ignore[reportPrivateUsage]
            "objects of the engine": count_objects(),
            "tasks of the engine": len(asyncio.all_tasks()),
            "threads of the engine": threading.active_count(),
            "descriptors of the engine": count_open("self"),
            "descriptors of the keeper": count_open(keeper) - 2 * len(networks_ahead(keeper)),
            "processes of the keeper": len(children),
            "mounts of the machine": count_mounts("self"),
            "mounts of the keeper": count_mounts(keeper),
            "control groups": count_groups(data),
            "memory of the engine, KiB": memory_kib("self"),
            "memory of the keeper, KiB": memory_kib(keeper),
            "journal, KiB": sum(path.stat().st_size for path in data.glob("journal.db*")) >> 10,
        }
    )


async def content() -> AsyncIterator[bytes]:
    yield b"content"


async def live(host: SandboxHostService, number: int) -> None:
    """One session's life: the kinds take turns, most of them short."""
    session_id = (await host.create(SessionSpec(labels={"round": str(number)}))).session_id
    kind = number % 10
    if kind == 5:
        script = "head -c 400000 /dev/zero; echo x > /tmp/x; sleep 1000 & echo done"
        assert (await run(host, CallRequest(session_id, ("sh", "-c", script)))).exit_code == 0
    elif kind == 6:
        await host.write_file(FileWrite(session_id, "file"), content())
        async with host.call(CallRequest(session_id, ("sleep", "1000"), detach=True)):
            pass
    elif kind == 7:
        await host.turn_complete(TurnRequest(session_id, request_id=f"turn-{number}"))
        await run(host, CallRequest(session_id, ("sh", "-c", "echo x > x")))
        await host.turn_complete(TurnRequest(session_id))
        await host.rollback(RollbackRequest(session_id, "turn-0001"))
    elif kind == 8:
        forks = await host.fork(ForkRequest(session_id, None, count=2, request_id=f"fork-{number}"))
        await host.turn_complete(TurnRequest(forks[0].session_id))
        for fork in forks:
            await host.destroy(fork.session_id)
    elif kind == 9:
        await host.create_snapshot(SnapshotRequest(session_id, "point"))
        await host.delete_snapshot(session_id, "point")
    await host.destroy(session_id)


async def live_many(host: SandboxHostService, rounds: int) -> None:
    numbers = iter(range(rounds))

    async def some() -> None:
        for number in numbers:
            await live(host, number)
            if number % 100 == 0 and sys.stdout.isatty():
                print(f"\r{number} of {rounds} rounds", end="", flush=True)

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(some())


@dataclass(frozen=True, slots=True)
class Leaks:
    before: Counter[str]
    after: Counter[str]

    @property
    def found(self) -> list[str]:
        return [
            f"{name}: {self.before[name]} before, {self.after[name]} after"
            for name in {**self.before, **self.after}
            if self.after[name] - self.before[name] > BOUNDS.get(name, 0)
        ]


async def look_for_leaks(host: SandboxHostService, data: Path, rounds: int) -> Leaks:
    """The first sessions open what stays open: id maps, the template, threads."""
    warm = [await host.create(SessionSpec()) for _ in range(3 * AT_ONCE)]
    for session in warm:
        await host.destroy(session.session_id)
    await live_many(host, 10 * AT_ONCE)
    before = await _rest(host, data, None)
    await live_many(host, rounds)
    return Leaks(before, await _rest(host, data, before))


async def _rest(host: SandboxHostService, data: Path, before: Counter[str] | None) -> Counter[str]:
    """What is removed behind the answer has its time: until all is as before, or, with nothing before, until nothing
    changes any more."""
    deadline = time.monotonic() + SETTLE_S
    now = await inventory(host, data)
    while time.monotonic() < deadline:
        await asyncio.sleep(0.2)
        last, now = now, await inventory(host, data)
        is_still = not Leaks(last, now).found and not Leaks(now, last).found
        if is_still if before is None else not Leaks(before, now).found:
            break
        # A group that the kernel held for a moment longer goes with the next session.
        await host.destroy((await host.create(SessionSpec())).session_id)
    return now


def report(leaks: Leaks, rounds: int, seconds: float) -> int:
    print(f"\n{'':<30}{'before':>10}{'after':>10}")
    for name in {**leaks.before, **leaks.after}:
        remark = f"   at most {BOUNDS[name]} more" if name in BOUNDS else ""
        print(f"{name:<30}{leaks.before[name]:>10}{leaks.after[name]:>10}{remark}")
    print(f"\n{rounds} rounds, {seconds:.0f} s; leaks: {len(leaks.found)}")
    for found in leaks.found:
        print(f"  {found}")
    return 1 if leaks.found or not rounds else 0


async def look(data: Path, rounds: int) -> int:
    began = time.monotonic()
    async with build(load({**os.environ, "SANDLOT_DATA_DIR": str(data)})) as host:
        return report(await look_for_leaks(host, data, rounds), rounds, time.monotonic() - began)


def main() -> int:
    parser = argparse.ArgumentParser(prog="leaks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--templates", type=Path, default=ROOT / "build" / "test-templates")
    arguments = parser.parse_args()
    enter_own_mounts()
    (ROOT / "build").mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="sandlot-leaks-", dir=ROOT / "build"))
    data = folder / "data"
    data.mkdir(mode=0o700)
    if arguments.templates.is_dir():
        (data / "templates").symlink_to(arguments.templates.absolute())
    try:
        return asyncio.run(look(data, arguments.rounds))
    finally:
        (data / "templates").unlink(missing_ok=True) if (data / "templates").is_symlink() else None
        shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main())
