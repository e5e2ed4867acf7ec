"""Whether an engine that starts on a disk after a power cut finds what was acknowledged."""

import os
import signal
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Any

from sandlot.config.settings import load
from sandlot.host.service import SandboxHostService
from sandlot.host.storage.merged import PREFIX
from sandlot.model import CallRequest, ForkRequest, RollbackRequest, SandlotError, SessionSpec, TurnRequest
from sandlot.wiring.embedded import build
from tests.conftest import run
from tests.power.cuts import Acknowledged
from tests.power.worker import look

WHOLE = "test ! -e value || { sha256sum --check --quiet sums && cat value; }"


async def judge(data: Path, known: Acknowledged) -> list[str]:
    """What is wrong. The data directory is used up."""
    settings = load({**os.environ, "SANDLOT_DATA_DIR": str(data), "SANDLOT_STORAGE": "", "SANDLOT_RUNTIME": ""})
    problems: list[str] = []
    keeper: int | None = None
    try:
        async with build(settings) as host:
            keeper = os.pidfd_open(host.keeper_pid)
            seen = await look(host)
            problems += differences(known, seen)
            for session_id, one in seen.items():
                problems += await _try_session(host, session_id, known, one)
            problems += await _work(host)
        problems += examine(data)
    except SandlotError as error:
        problems.append(f"{type(error).__name__}: {error}")
    finally:
        if keeper is not None:
            with suppress(ProcessLookupError):  # without sessions it has ended by itself
                signal.pidfd_send_signal(keeper, signal.SIGKILL)  # its guests end too: the disk must be let go
            os.close(keeper)
    return problems


def differences(known: Acknowledged, seen: dict[str, Any]) -> list[str]:
    """Each session is as it was before the operation that was under way, or as it was after it."""
    before, after = known.before, known.after if known.after is not None else known.before
    wrong: list[str] = []
    for session_id in before.keys() | seen.keys():
        possible = [_facts(world.get(session_id)) for world in (before, after)]
        if (found := _facts(seen.get(session_id))) not in possible:
            wrong.append(f"{session_id} is {found}, expected {' or '.join(map(str, possible))}")
    made = len(seen.keys() - before.keys())
    if made not in (0, len(after.keys() - before.keys())):
        wrong.append(f"{known.kind} left {made} new sessions, expected all or none")
    return wrong


def _facts(one: dict[str, Any] | None) -> dict[str, Any] | None:
    return one and {name: one[name] for name in ("origin", "head", "parents", "turns")}


async def _try_session(
    host: SandboxHostService, session_id: str, known: Acknowledged, one: dict[str, Any]
) -> list[str]:
    """It comes back, and at each of its snapshots it holds what was written until then."""
    wrong: list[str] = []
    await host.recover(session_id)
    values = {**_values(known.after, session_id), **_values(known.before, session_id)}
    for name in one["parents"].keys() & values.keys():
        await host.rollback(RollbackRequest(session_id, name, keep=True))
        ran = await run(host, CallRequest(session_id, ("sh", "-c", WHOLE)))
        if ran.exit_code or ran.stdout.decode().strip() != values[name]:
            wrong.append(f"{session_id}/{name} should hold {values[name]!r}: {ran}")
    await host.turn_complete(TurnRequest(session_id))
    return wrong


def _values(world: dict[str, Any] | None, session_id: str) -> dict[str, str]:
    return world[session_id]["values"] if world and session_id in world else {}


async def _work(host: SandboxHostService) -> list[str]:
    """New work works: everything once. Leaves nothing."""
    session_id = (await host.create(SessionSpec())).session_id
    await run(host, CallRequest(session_id, ("sh", "-c", "echo 1 > value")))
    await host.turn_complete(TurnRequest(session_id))
    await run(host, CallRequest(session_id, ("sh", "-c", "echo 2 > value")))
    await host.rollback(RollbackRequest(session_id, "turn-0001", keep=True))
    (fork,) = await host.fork(ForkRequest(session_id, "turn-0001", count=1))
    held = [(await run(host, CallRequest(name, ("cat", "value")))).stdout for name in (session_id, fork.session_id)]
    await host.destroy(fork.session_id)
    await host.destroy(session_id)
    return [] if held == [b"1\n", b"1\n"] else [f"new sessions hold {held}"]


def examine(data: Path) -> list[str]:
    """With no engine there: what the journal names is what lies on the disk, and nothing else does."""
    with sqlite3.connect(data / "journal.db") as db:
        wrong = [f"the journal: {row[0]}" for row in db.execute("PRAGMA integrity_check") if row[0] != "ok"]
        texts = db.execute("SELECT volume_state FROM sessions UNION SELECT point FROM snapshots").fetchall()
        orphans = ("calls", "snapshots", "turns")
        for table in orphans:
            sql = f"SELECT count(*) FROM {table} WHERE session_id NOT IN (SELECT session_id FROM sessions)"
            (count,) = db.execute(sql).fetchone()
            wrong += [f"{count} rows of {table} without a session"] if count else []
        wrong += [
            f"{row[0]} is marked {row[1]}" for row in db.execute("SELECT session_id, changing FROM sessions") if row[1]
        ]
    db.close()
    named = {layer for (text,) in texts for layer in text.split(",")}
    there = {path.name for path in (data / "volumes").iterdir()}
    wrong += [f"layers that are missing: {named - there}"] if named - there else []
    # Merged ones may stand for others that are named.
    unnamed = {layer for layer in there - named if not layer.startswith(PREFIX)}
    wrong += [f"layers that nobody names: {unnamed}"] if unnamed else []
    left = sorted(path.name for path in (data / "trash").iterdir())
    return wrong + ([f"the trash still holds {left}"] if left else [])
