"""`python -m tests.soak.worker LOG SEED FAILPOINT HIT`: works on a world until the failpoint kills it.

Before an operation it writes what it is about to do, and after it what came back: what stands behind was acknowledged.
"""

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from sandlot.config.settings import load
from sandlot.host import failpoints
from sandlot.host.service import SandboxHostService
from sandlot.model import (
    BUILTIN,
    CallRequest,
    CapabilityNotSupported,
    ExportRequest,
    FileCopy,
    FileWrite,
    ForkRequest,
    ImportRequest,
    MoveRequest,
    PauseRequest,
    Resources,
    RollbackRequest,
    SandlotError,
    SessionFilter,
    SessionSpec,
    SessionState,
    SnapshotRequest,
    TreeUpload,
    TurnRequest,
    limits,
)
from tests.soak.clients import archive
from tests.soak.shelf import SHELF
from tests.soak.shelf import build_two as build

OPERATIONS_MAX = 60
SESSIONS_MAX = 8
OFTEN = ("write", "turn")
WAYS = ("command", "file", "copy", "upload")  # to write
SOMETIMES = ("rollback", "snapshot", "delete", "fork", "destroy", "rest", "recover", "move", "import")
FAIL_S = 30
DISK_BYTES = 64 << 20
MERGED_AT = 3  # layers: so early that most worlds have merged ones


class Worker:
    def __init__(self, host: SandboxHostService, log: Path, seed: str) -> None:
        self._host = host
        self._log = log.open("a")
        self._rng = random.Random(seed)
        self._seed = seed
        self._count = 0
        self._home = os.environ.get("SANDLOT_STORAGE") or "layers"

    def _write(self, **line: Any) -> None:
        self._log.write(json.dumps(line) + "\n")
        self._log.flush()

    async def step(self) -> None:
        self._count += 1
        tag = f"{self._seed}-{self._count}"
        ids = [session.session_id for session in (await self._host.list(SessionFilter())).sessions]
        kinds = [*OFTEN, *OFTEN, *OFTEN, *SOMETIMES] if ids else ["create"]
        if ids and len(ids) < SESSIONS_MAX:
            kinds.append("create")
        kind = self._rng.choice(kinds)
        if kind in ("fork", "import") and len(ids) >= SESSIONS_MAX:
            kind = "destroy"
        target = self._rng.choice(ids) if ids else ""
        await self._do(kind, target, tag)

    async def _do(self, kind: str, session_id: str, tag: str) -> None:
        host, rng = self._host, self._rng
        names = [shot.name for shot in await host.list_snapshots(session_id)] if session_id else []
        if kind in ("rollback", "delete") and not names:
            kind = "turn"
        name = rng.choice(names) if names else None
        keep = rng.random() < 0.5
        about: dict[str, Any] = {"op": kind, "session": session_id, "tag": tag, "name": name, "keep": keep}
        if kind == "create":
            about["session"] = f"s-{tag}"
        self._write(begin=about)
        answer: Any = None
        if kind == "create":
            limit = DISK_BYTES if self._home == "btrfs" and rng.random() < 0.5 else None
            await host.create(SessionSpec(session_id=f"s-{tag}", resources=Resources(disk_bytes=limit)))
        elif kind == "write":
            await self._put(session_id, tag)
        elif kind == "turn":
            answer = (await host.turn_complete(TurnRequest(session_id))).snapshot
        elif kind == "snapshot":
            answer = (await host.create_snapshot(SnapshotRequest(session_id, f"n-{tag}"))).name
        elif kind == "rollback":
            assert name is not None
            await host.rollback(RollbackRequest(session_id, name, keep))
        elif kind == "delete":
            assert name is not None
            await host.delete_snapshot(session_id, name)
        elif kind == "fork":
            forks = await host.fork(ForkRequest(session_id, name, count=2))
            answer = {"children": [fork.session_id for fork in forks], "at": (forks[0].origin or "").split("/")[-1]}
        elif kind == "rest":
            await host.pause(PauseRequest(session_id))
            await host.resume(session_id)
        elif kind == "recover":
            await self._fail(session_id)
            await host.recover(session_id)
        elif kind == "move":
            await self._move(session_id)
        elif kind == "import":
            await self._import(session_id, tag)
        elif kind == "destroy":
            await host.destroy(session_id)
        self._write(done=tag, answer=answer)

    async def _move(self, session_id: str) -> None:
        info = await self._host.get(session_id)
        others = [name for name in (self._home, SHELF) if name != info.storage]
        # One with a limit stays where it is held.
        stays = (CapabilityNotSupported,) if info.resources.disk_bytes is not None else ()
        with contextlib.suppress(*stays):
            async with self._host.move(MoveRequest(session_id, others[0])) as progress:
                async for _told in progress:
                    pass
            assert not stays, "a limit was given up"

    async def _import(self, session_id: str, tag: str) -> None:
        async with self._host.export(ExportRequest(session_id)) as stream:
            # By its name: a machine that is upgraded meanwhile has another build of it.
            await self._host.import_session(ImportRequest(f"i-{tag}", template=BUILTIN), stream)

    async def _fail(self, session_id: str) -> None:
        """As when the kernel ends its guest."""
        guest = self._host._lifecycle.find(session_id).guest  # pyright: ignore[reportPrivateUsage]
        assert guest is not None
        os.kill(guest.pid, signal.SIGKILL)
        async with asyncio.timeout(FAIL_S):
            while (await self._host.get(session_id)).state is not SessionState.FAILED:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def _put(self, session_id: str, tag: str) -> None:
        """By a command or by a verb of files. A command outlives the engine that began it; what each does must be whole
        at every moment."""
        way, content = self._rng.choice(WAYS), f"{tag}\n".encode()
        script = f"mkdir -p d/{tag}; echo {tag} > d/{tag}/f"
        if way == "command":
            script += f"; echo {tag} > new; mv new value"
        async with self._host.call(CallRequest(session_id, ("sh", "-ec", script))) as stream:
            result = await stream.result()
        assert result.exit_code == 0, result
        if way == "file":
            await self._host.write_file(FileWrite(session_id, "value"), _once(content))
        elif way == "copy":
            await self._host.copy_file(FileCopy(session_id, f"d/{tag}/f", to="value"))
        elif way == "upload":
            await self._host.upload_tree(TreeUpload(session_id, "."), _once(archive(value=content)))


async def _once(content: bytes) -> AsyncIterator[bytes]:
    yield content


async def main() -> None:
    log, seed, failpoint, hit = sys.argv[1:]
    left = int(hit)

    def strike() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    limits.LAYERS_MERGED_AT = MERGED_AT  # pyright: ignore[reportConstantRedefinition]
    async with build(load()) as host:
        failpoints.arm(failpoint, strike)
        worker = Worker(host, Path(log), seed)
        for _ in range(OPERATIONS_MAX):
            try:
                await worker.step()
            except SandlotError as error:
                print(f"{type(error).__name__}: {error}", file=sys.stderr)
                raise


if __name__ == "__main__":
    asyncio.run(main())
