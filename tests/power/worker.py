"""`python -m tests.power.worker DATA MARKS ROUNDS`: works on a data directory, and marks what was acknowledged.

Before an operation it marks which one; after it, all that the engine then tells of its sessions. Both are true of every
later moment, the power being cut or not, until the next operation is begun.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

from sandlot.config.settings import load
from sandlot.host.service import SandboxHostService
from sandlot.model import (
    CallRequest,
    ForkRequest,
    RollbackRequest,
    SessionFilter,
    SessionSpec,
    SnapshotRequest,
    TurnRequest,
    limits,
)
from sandlot.wiring.embedded import build
from tests.conftest import run

PAGE = 4096  # of the journal; before its log starts over for the first time, the journal itself has one
WEAR_MAX = 50
MERGED_AT = 3
LARGE = {f"label-{number}": "x" * 4000 for number in range(60)}

# Files of several sizes, one renamed, one removed, one that is named by two names; the sums tell whether all of it
# is there. What it holds depends on the tag alone.
WRITE = """
mkdir -p d/{tag}/deep; echo {tag} > d/{tag}/deep/f; yes {tag} | head -c 150000 > d/{tag}/large; echo old > d/{tag}/old
mv d/{tag}/old d/{tag}/renamed; echo gone > d/{tag}/gone; rm d/{tag}/gone; ln d/{tag}/large d/{tag}/twin
ln -sf d/{tag} last; rm -rf d/before; mkdir d/before; echo {tag} > d/before/f; chmod 640 d/before/f
echo {tag} > new; mv new value; find d last -type f | sort | xargs sha256sum > sums
"""


class Worker:
    def __init__(self, host: SandboxHostService, marks: Path) -> None:
        self._host = host
        self._marks = os.open(marks, os.O_WRONLY | os.O_APPEND)
        self._values: dict[str, str] = {}  # what each session's files hold now
        self._held: dict[str, dict[str, str]] = {}  # by each snapshot of each session

    def _mark(self, **line: Any) -> None:
        os.write(self._marks, json.dumps(line).encode())

    async def _do(self, kind: str, session_id: str, work: Awaitable[Any]) -> Any:
        self._mark(begin=kind, session=session_id)
        answer = await work
        self._mark(done=kind, seen=await self._look())
        return answer

    async def _look(self) -> dict[str, Any]:
        seen = await look(self._host)
        for session_id, one in seen.items():
            source, _, snapshot = (one["origin"] or "").partition("/")
            if source and session_id not in self._values:
                self._values[session_id] = self._held[source][snapshot]
            held = self._held.setdefault(session_id, {})
            for name in one["parents"]:
                held.setdefault(name, self._values.get(session_id, ""))
            one["values"] = {name: held[name] for name in one["parents"]}
        return seen

    async def wear(self, journal: Path) -> None:
        """Until the journal's log starts over. A log that grows takes other things along to the disk when it is
        synced; one that is written in place does not."""
        for number in range(WEAR_MAX):
            if journal.stat().st_size > 2 * PAGE:
                return
            session_id = f"early-{number}"
            await self._do("wear", session_id, self._host.create(SessionSpec(session_id=session_id, labels=LARGE)))
            await self._do("wear", session_id, self._host.destroy(session_id))
        raise AssertionError("the journal's log does not start over")

    async def create(self, session_id: str) -> None:
        await self._do("create", session_id, self._host.create(SessionSpec(session_id=session_id)))

    async def write(self, session_id: str, tag: str) -> None:
        self._values[session_id] = tag
        script = ("sh", "-ec", WRITE.format(tag=tag))
        ran = await self._do("write", session_id, run(self._host, CallRequest(session_id, script)))
        assert ran.exit_code == 0, ran

    async def turn(self, session_id: str) -> None:
        await self._do("turn", session_id, self._host.turn_complete(TurnRequest(session_id)))

    async def snapshot(self, session_id: str, name: str) -> None:
        await self._do("snapshot", session_id, self._host.create_snapshot(SnapshotRequest(session_id, name)))

    async def rollback(self, session_id: str, to: str, *, keep: bool) -> None:
        self._values[session_id] = self._held[session_id][to]
        await self._do("rollback", session_id, self._host.rollback(RollbackRequest(session_id, to, keep)))

    async def fork(self, session_id: str) -> list[str]:
        forks = await self._do("fork", session_id, self._host.fork(ForkRequest(session_id, None, count=2)))
        return [fork.session_id for fork in forks]

    async def delete(self, session_id: str, name: str) -> None:
        await self._do("delete", session_id, self._host.delete_snapshot(session_id, name))

    async def destroy(self, session_id: str) -> None:
        await self._do("destroy", session_id, self._host.destroy(session_id))

    async def merge(self, session_id: str) -> None:
        """What is done behind everyone's back, at a known moment."""
        volume = self._host._lifecycle.find(session_id).volume  # pyright: ignore[reportPrivateUsage]
        assert volume is not None
        storage = self._host._parts.storages["layers"]  # pyright: ignore[reportPrivateUsage]
        await self._do("merge", session_id, storage.tidy(volume.state))

    async def round(self, number: int) -> None:
        one, other = f"one-{number}", f"other-{number}"
        await self.create(one)
        await self.turn(one)
        await self.write(one, f"a-{number}")
        await self.turn(one)
        await self.create(other)
        async with self._host.call(CallRequest(one, ("sleep", "1000"), detach=True)):
            pass
        await self.write(one, f"b-{number}")
        await self.snapshot(one, "alive")  # a copy: the sleeper could write
        await self.write(one, f"c-{number}")
        await self.turn(one)
        await self.rollback(one, "turn-0002", keep=True)
        await self.write(one, f"d-{number}")
        first, second = await self.fork(one)
        await self.write(first, f"e-{number}")
        await self.turn(first)
        await self.delete(one, "alive")
        await self.rollback(one, "turn-0002", keep=False)
        await self.destroy(second)
        await self.destroy(one)
        for letter in "fghij":
            await self.write(other, f"{letter}-{number}")
            await self.turn(other)
        await self.merge(other)
        await self.delete(other, "turn-0002")
        await self.rollback(other, "turn-0004", keep=False)
        await self.write(other, f"k-{number}")
        await self.snapshot(other, "kept")


async def look(host: SandboxHostService) -> dict[str, Any]:
    """All that can be told without touching anything."""
    seen: dict[str, Any] = {}
    for session in (await host.list(SessionFilter(limit=1000))).sessions:
        shots = await host.list_snapshots(session.session_id)
        seen[session.session_id] = {
            "origin": session.origin,
            "head": session.head,
            "parents": {shot.name: shot.parent for shot in shots},
            "turns": [turn.number for turn in await host.turns(session.session_id)],
        }
    return seen


async def main() -> None:
    data, marks, rounds = sys.argv[1:]
    limits.LAYERS_MERGED_AT = MERGED_AT  # pyright: ignore[reportConstantRedefinition] - a few turns are enough
    host = build(load({**os.environ, "SANDLOT_DATA_DIR": data}))
    await host.start()
    worker = Worker(host, Path(marks))
    await worker.wear(Path(data) / "journal.db")
    for number in range(int(rounds)):
        await worker.round(number)
    # As the machine would: nobody closes anything. Guests end with the keeper.
    os.kill(host.keeper_pid, signal.SIGSTOP)
    os.kill(host.keeper_pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    asyncio.run(main())
