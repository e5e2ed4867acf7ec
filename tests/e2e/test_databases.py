"""A database that is open and written to while snapshots are taken: every one of them restores to a whole database."""

import asyncio
import json

import pytest

from sandlot.host.service import SandboxHostService
from sandlot.model import CallRequest, RollbackRequest, SessionSpec, TurnRequest
from tests.conftest import run
from tests.e2e.standstill import PATIENCE_S

pytestmark = [pytest.mark.root, pytest.mark.timeout(900)]

MODES = ("wal", "delete", "truncate", "persist")
WRITER = """
import os, sqlite3, sys
db = sqlite3.connect("app.db", isolation_level=None, timeout=60)
db.execute(f"PRAGMA journal_mode={sys.argv[1]}")
db.execute("CREATE TABLE IF NOT EXISTS commits (number INTEGER PRIMARY KEY, filler BLOB)")
db.execute("CREATE TABLE IF NOT EXISTS sums (name TEXT PRIMARY KEY, value INTEGER)")
db.execute("INSERT OR IGNORE INTO sums VALUES ('all', 0)")
number = db.execute("SELECT coalesce(max(number), 0) FROM commits").fetchone()[0]
while True:
    number += 1
    db.execute("BEGIN IMMEDIATE")
    db.execute("INSERT INTO commits VALUES (?, ?)", (number, os.urandom(number * 37 % 6000)))
    db.execute("UPDATE sums SET value = value + ?", (number,))
    db.execute("COMMIT")
    with open("new", "w") as file: file.write(str(number))
    os.rename("new", "committed")
"""
# Someone who has it open and reads from it, now and then in the middle of a write.
READER = """
import sqlite3, time
db = sqlite3.connect("app.db", timeout=60)
while True:
    try: db.execute("SELECT count(*) FROM commits").fetchone()
    except sqlite3.OperationalError: pass
    time.sleep(0.005)
"""
JUDGE = """
import json, sqlite3
db = sqlite3.connect("app.db", timeout=60)
whole = [row[0] for row in db.execute("PRAGMA integrity_check")]
numbers = [row[0] for row in db.execute("SELECT number FROM commits ORDER BY number")]
total = db.execute("SELECT value FROM sums").fetchone()[0]
print(json.dumps([whole, len(numbers), numbers == list(range(1, len(numbers) + 1)), total == sum(numbers)]))
"""


async def python(host: SandboxHostService, script: str, *args: str) -> str:
    ran = await run(host, CallRequest("s", ("python3", "-c", script, *args)))
    assert ran.exit_code == 0, ran
    return ran.stdout.decode()


async def leave_running(host: SandboxHostService, script: str, *args: str) -> None:
    async with host.call(CallRequest("s", ("python3", "-c", script, *args), detach=True)) as stream:
        async for _started in stream:
            break


async def committed(host: SandboxHostService, after: int) -> int:
    """How far the writer says that it is, when that is further than this."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            ran = await run(host, CallRequest("s", ("cat", "committed")))
            if ran.exit_code == 0 and (now := int(ran.stdout)) > after:
                return now


@pytest.mark.every_storage(slow=True)
async def test_a_database_is_whole_in_every_snapshot(
    host: SandboxHostService, storage: str, pytestconfig: pytest.Config
) -> None:
    rounds = 50 if pytestconfig.getoption("--all-storages") else 4
    await host.create(SessionSpec(session_id="s"))
    before = 0
    for number in range(rounds):
        await leave_running(host, WRITER, MODES[number % len(MODES)])
        before = await committed(host, before)
        await leave_running(host, READER)
        before = await committed(host, before + 3)
        shot = (await host.turn_complete(TurnRequest("s"))).snapshot
        assert shot
        later = await committed(host, before + 1)
        await host.rollback(RollbackRequest("s", shot, keep=number % 2 == 0))
        whole, count, is_prefix, fits = json.loads(await python(host, JUDGE))
        assert whole == ["ok"], f"round {number} on {storage}: {whole[:3]}"
        assert is_prefix, f"round {number} on {storage}: commits are missing in between"
        assert fits, f"round {number} on {storage}: half of a commit"
        assert before <= count, f"round {number} on {storage}: {before} were told, {count} are there, {later} later"
        before = min(count, int((await run(host, CallRequest("s", ("cat", "committed")))).stdout))
