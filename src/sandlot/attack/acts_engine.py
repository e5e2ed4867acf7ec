"""Requests that try to become paths, options or commands; and requests at the same time."""

import asyncio
import os
import secrets
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path

from sandlot.attack.arena import Arena, pieces, run_call
from sandlot.attack.rows import ROOT, USER
from sandlot.attack.verdicts import Escaped, Leaked, demand
from sandlot.contracts import Host
from sandlot.model import (
    CallRequest,
    Capability,
    FileRead,
    FileWrite,
    InvalidArgument,
    RollbackRequest,
    SandlotError,
    SessionExists,
    SessionFilter,
    SessionNotFound,
    SessionSpec,
    SnapshotRequest,
)

_ROUNDS = 25
SETTLE_S = 60.0

BAD_IDS = (
    *("", "..", "../x", "a/b", "/etc", "%2e%2e", "a\nb", "a\n", "a\0b", "-rf", ".x", "a b", "$(id)", "a" * 5000),
    *("\u00e4", "a..b", "a\udc80", "x;reboot", "`id`", "a\\b", "\x1b[31m"),
)


async def _enter(host: Host, request: CallRequest) -> None:
    async with host.call(request):
        pass


_ID_VERBS: dict[str, Callable[[Host, str], Awaitable[object]]] = {
    "create": lambda host, bad: host.create(SessionSpec(session_id=bad)),
    "create by request": lambda host, bad: host.create(SessionSpec(request_id=bad)),
    "create from template": lambda host, bad: host.create(SessionSpec(template=bad)),
    "create from snapshot": lambda host, bad: host.create(SessionSpec(snapshot=f"x/{bad}")),
    "get": lambda host, bad: host.get(bad),
    "destroy": lambda host, bad: host.destroy(bad),
    "calls": lambda host, bad: host.calls(bad),
    "call": lambda host, bad: _enter(host, CallRequest(bad, ("true",))),
    "call by id": lambda host, bad: _enter(host, CallRequest("x", ("true",), call_id=bad)),
    "snapshot": lambda host, bad: host.create_snapshot(SnapshotRequest("x", bad)),
    "snapshots of": lambda host, bad: host.list_snapshots(bad),
    "delete snapshot": lambda host, bad: host.delete_snapshot("x", bad),
    "roll back": lambda host, bad: host.rollback(RollbackRequest(bad, "x")),
}


async def ids(arena: Arena) -> None:
    for name, verb in _ID_VERBS.items():
        for bad in BAD_IDS:
            try:
                await verb(arena.host, bad)
            except InvalidArgument as error:
                demand(len(str(error)) < 1000, f"{name}: the error repeats {len(str(error))} characters")
                continue
            except SandlotError as error:
                raise Escaped(f"{name} looked for {bad[:40]!r} before it refused it: {error.message[:100]}") from None
            raise Escaped(f"{name} took the id {bad[:40]!r}")


async def injection(arena: Arena) -> None:
    """Hostile text is kept and shown as it is."""
    text = "x'; rm -rf / #\n\r\t\"`id`$(id)%s{0}\x1b]0;owned\x07\x1b[2J\u202e<script>&amp;"
    spec = SessionSpec(labels={"note": text}, envs={"HOSTILE": text})
    async with arena.fresh(spec) as session:
        demand((await arena.host.get(session)).labels["note"] == text, "a label was changed on the way")
        page = await arena.host.list(SessionFilter(labels={"note": text}))
        demand([info.session_id for info in page.sessions] == [session], "a label is not found as it was given")
        said = await run_call(arena.host, CallRequest(session, ("printenv", "HOSTILE")))
        demand(said.stdout.decode() == text + "\n", "a variable was changed on the way")
        said = await run_call(arena.host, CallRequest(session, ("printf", "%s", text)))
        demand(said.stdout.decode() == text, "an argument was changed on the way")
        records = await arena.host.calls(session)
        demand(any(record.argv[-1] == text for record in records), "an argument was changed in the record")


async def _outcome(work: Coroutine[object, object, object]) -> object:
    try:
        return await work
    except SandlotError as error:
        return error


async def at_once(arena: Arena) -> None:
    """One winner, typed errors, nothing left."""
    host, name = arena.host, f"twice-{secrets.token_hex(4)}"
    ended = await asyncio.gather(*(_outcome(host.create(SessionSpec(session_id=name))) for _ in range(8)))
    losers = [one for one in ended if isinstance(one, SandlotError)]
    demand(len(losers) == 7, f"{8 - len(losers)} of eight creates with one id were answered")
    demand(all(isinstance(one, SessionExists) for one in losers), "a create that lost tells something else")
    script = "echo ran >>/workspace/ran; sleep 0.2"
    calls = [_outcome(run_call(host, CallRequest(name, ("sh", "-c", script), call_id="once"))) for _ in range(6)]
    await asyncio.gather(*calls)
    said = await run_call(host, CallRequest(name, ("cat", "/workspace/ran" if _isolates(arena) else "ran")))
    demand(said.text in ("ran", ""), "a call with one id was run more than once")
    request = f"request-{secrets.token_hex(4)}"
    answers = await asyncio.gather(*(_outcome(host.create(SessionSpec(request_id=request))) for _ in range(4)))
    made = {getattr(one, "session_id", None) for one in answers}
    demand(len(made) == 1 and None not in made, "a create that was repeated by its request gave other answers")
    await asyncio.gather(*(_outcome(host.destroy(one)) for one in (*made, name, name) if one))
    doomed = f"doomed-{secrets.token_hex(4)}"
    making = asyncio.create_task(_outcome(host.create(SessionSpec(session_id=doomed))))
    await asyncio.sleep(0)
    await _outcome(host.destroy(doomed))
    await making
    await _outcome(host.destroy(doomed))
    try:
        await host.get(doomed)
    except SessionNotFound:
        return
    raise Leaked("a session that was destroyed while it was made is there")


def _isolates(arena: Arena) -> bool:
    return Capability.ISOLATION in arena.capabilities


_HOLD = """
import mmap, os, sys, time
os.makedirs("/workspace/held/below", exist_ok=True)
os.chdir("/workspace/held/below")
file = open("/workspace/held/file", "w+b"); file.truncate(1 << 20)
memory = mmap.mmap(file.fileno(), 0)
open("/workspace/held/ready", "w").close()
while True:
    memory[0:5] = b"later"; file.write(b"x"); file.flush(); time.sleep(0.01)
"""


async def rollback_under_writers(arena: Arena) -> None:
    host = arena.host
    async with arena.fresh() as session:
        await host.write_file(FileWrite(session, "/workspace/kept", USER), pieces(b"first"))
        await host.create_snapshot(SnapshotRequest(session, "first"))
        await host.write_file(FileWrite(session, "/workspace/kept", USER), pieces(b"second"))
        for user in (USER, ROOT):
            async with host.call(CallRequest(session, ("python3", "-c", _HOLD), user=user, detach=True)):
                await arena.sh("until test -e /workspace/held/ready; do sleep 0.05; done", ROOT, session)
            await host.rollback(RollbackRequest(session, "first"))
            async with host.read_file(FileRead(session, "/workspace/kept")) as stream:
                content = b"".join([piece async for piece in stream])
            demand(content == b"first", f"after the rollback the file holds {content[:20]!r}")
            left = (await arena.sh("ls -d /workspace/held; pgrep -x python3", ROOT, session)).text
            demand(not left, f"after the rollback this is still there: {left}")
        # Destroyed with a writer alive: whatever it holds must go with the session.
        async with host.call(CallRequest(session, ("python3", "-c", _HOLD), user=USER, detach=True)):
            await arena.sh("until test -e /workspace/held/ready; do sleep 0.05; done", ROOT, session)


async def rounds(arena: Arena) -> None:
    """Sessions that come and go leave nothing. `tests/soak` does it for hours."""
    await _round(arena)
    before = await asyncio.to_thread(_footprint, arena.data)
    for _number in range(_ROUNDS):
        await _round(arena)
    give_up = asyncio.get_running_loop().time() + SETTLE_S
    while left := (await asyncio.to_thread(_footprint, arena.data)) - before:
        if asyncio.get_running_loop().time() > give_up:
            raise Leaked(f"after {_ROUNDS} sessions these stayed: {', '.join(sorted(left)[:10])}")
        await asyncio.sleep(0.1)


async def _round(arena: Arena) -> None:
    async with arena.fresh() as session:
        await arena.sh("sleep 60 & echo x >/workspace/f", USER, session)


def _footprint(data: Path) -> set[str]:
    """What sessions of this data directory leave on a machine: volumes, guests, control groups, mounts."""
    # What waits for the next session has another name each time; tests/unit/host/storage/test_spares.py bounds it.
    volumes = {str(path) for path in data.glob("*/*") if "template" not in str(path) and path.parent.name != "spares"}
    mounts = {line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(data) in line}
    guests = _guests(data)
    bases = {part for pid in guests for part in _read(f"/proc/{pid}/cgroup").split("/") if part.startswith("sandlot-")}
    groups = {
        f"{folder}/{name}"
        for folder, names, _files in os.walk("/sys/fs/cgroup")
        for name in names
        if folder.rpartition("/")[2] in bases
    }
    return volumes | mounts | groups | {f"process {pid}" for pid in guests}


def _guests(data: Path) -> list[str]:
    """Children of the keeper, which stands in the data directory."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (folder / "comm").read_text() == "sandlot-keeper\n" and (folder / "cwd").samefile(data):
                return (folder / "task" / folder.name / "children").read_text().split()
        except OSError:  # it ended meanwhile
            continue
    return []


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
