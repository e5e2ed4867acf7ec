"""What the engine remembers: committed before it is acknowledged, and still there after the worst."""

import asyncio
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from sandlot.host.journal import CallRow, Journal, SessionRow
from sandlot.host.journal_writer import JournalError
from sandlot.host.schema import VERSION
from sandlot.model import CallRecord, CallResult, CallState, LimitHit, SessionState, limits

RESULT = CallResult("c-1", 7, signal=None, reason="because", duration_s=1.5, stdout_bytes=3, truncated=True)


def row(number: int = 1, **changes: object) -> SessionRow:
    made = SessionRow(
        session_id=f"s-{number}",
        serial=number,
        state=SessionState.CREATING,
        reason="",
        volume=f"v-{number}",
        id_range=number,
        storage="directory",
        runtime="namespaces",
        template="builtin",
        template_path="/templates/builtin",
        created=1000.5,
        expires=2000.25,
        request_id=None,
        spec='{"labels": {}}',
    )
    return replace(made, **changes)  # pyright: ignore[reportArgumentType]


def ended(process_id: int, result: CallResult, output: bytes | None) -> CallRow:
    record = CallRecord("s-1", f"c-{process_id}", ("x",), CallState.ENDED, 1.0, result)
    return CallRow(process_id, record, output)


@asynccontextmanager
async def journal_at(path: Path) -> AsyncGenerator[Journal, None]:
    journal = Journal(path)
    await journal.open()
    try:
        yield journal
    finally:
        await journal.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


@pytest.fixture
async def journal(path: Path) -> AsyncIterator[Journal]:
    async with journal_at(path) as opened:
        yield opened


async def end_call(
    journal: Journal, process_id: int, output: bytes | None = b"out", result: CallResult = RESULT
) -> None:
    safe = asyncio.Event()
    journal.call_ended(ended(process_id, result, output), safe.set)
    async with asyncio.timeout(10):
        await safe.wait()


# ---- sessions ---------------------------------------------------------------------------------------------------


async def test_a_session_is_kept_with_all_that_it_is(path: Path) -> None:
    rows = [row(2, request_id="r-2", reason="why"), row(1, state=SessionState.FAILED, spec='{"é": "\\ud800"}')]
    async with journal_at(path) as journal:
        for one in rows:
            await journal.add_session(one)
        assert await journal.sessions() == sorted(rows, key=lambda one: one.serial)
    async with journal_at(path) as journal:
        assert await journal.sessions() == sorted(rows, key=lambda one: one.serial)


async def test_a_state_is_set_for_one_session_only(journal: Journal) -> None:
    await journal.add_session(row(1))
    await journal.add_session(row(2))
    await journal.set_state("s-1", SessionState.FAILED, "its guest ended")
    await journal.set_state("s-9", SessionState.ACTIVE)
    assert await journal.sessions() == [row(1, state=SessionState.FAILED, reason="its guest ended"), row(2)]
    await journal.set_state("s-1", SessionState.ACTIVE)
    assert (await journal.sessions())[0] == row(1, state=SessionState.ACTIVE)


async def test_a_removed_session_takes_its_calls_along(journal: Journal) -> None:
    for number in (1, 2):
        await journal.add_session(row(number))
        journal.call_started(f"s-{number}", 1, "c-1", 1.0, ["true"])
    await journal.remove_session("s-1")
    assert await journal.sessions() == [row(2)]
    assert await journal.calls("s-1") == []
    assert len(await journal.calls("s-2")) == 1
    await journal.remove_session("s-1")
    await journal.add_session(row(1))
    assert await journal.last_process_id("s-1") == 0


@pytest.mark.parametrize("field", ["session_id", "request_id"])
async def test_what_must_be_unique_is_refused(journal: Journal, field: str) -> None:
    first = row(1, request_id="r-1")
    await journal.add_session(first)
    with pytest.raises(sqlite3.IntegrityError):
        await journal.add_session(replace(row(2, request_id="r-2"), **{field: getattr(first, field)}))
    assert await journal.sessions() == [first]


async def test_a_refused_item_does_not_spoil_its_batch(journal: Journal) -> None:
    """All are put before the thread can take one: they share a transaction, or at least some do."""
    journal.call_started("s-1", 1, "c-1", 1.0, ["true"])
    wanted = [row(1), row(1), row(2), row(2, serial=9), row(3), row(3)]
    answers = await asyncio.gather(*(journal.add_session(one) for one in wanted), return_exceptions=True)
    assert [isinstance(answer, sqlite3.IntegrityError) for answer in answers] == [False, True] * 3
    assert await journal.sessions() == [row(1), row(2), row(3)]
    assert len(await journal.calls("s-1")) == 1


# ---- calls ------------------------------------------------------------------------------------------------------


async def test_a_call_is_kept_from_start_to_end(path: Path) -> None:
    odd = ("sh", "-c", "\udcff", "é")
    async with journal_at(path) as journal:
        journal.call_started("s-1", 4, "c-1", 12.5, odd)
        (found,) = await journal.calls("s-1")
        assert found.record == CallRecord("s-1", "c-1", odd, CallState.RUNNING, 12.5)
        await end_call(journal, 4, b"\0\xff", replace(RESULT, limit=LimitHit.TIMEOUT, reason="\udcff"))
    async with journal_at(path) as journal:
        found = await journal.find_call("s-1", "c-1")
        assert found
        assert (found.process_id, found.output) == (4, b"\0\xff")
        ended = replace(RESULT, limit=LimitHit.TIMEOUT, reason="\udcff")
        assert found.record == CallRecord("s-1", "c-1", odd, CallState.ENDED, 12.5, ended)
        (listed,) = await journal.calls("s-1")
        assert (listed.record, listed.output) == (found.record, None), "lists carry no output"


async def test_calls_are_found_by_session_and_name(journal: Journal) -> None:
    for session_id in ("s-1", "s-2"):
        for number in (3, 1, 2):
            journal.call_started(session_id, number, f"c-{number}", 1.0, [session_id])
    assert [found.process_id for found in await journal.calls("s-1")] == [1, 2, 3]
    found = await journal.find_call("s-2", "c-3")
    assert found
    assert found.record.argv == ("s-2",)
    assert await journal.find_call("s-2", "c-9") is None
    assert await journal.find_call("s-9", "c-3") is None
    assert (await journal.last_process_id("s-1"), await journal.last_process_id("s-9")) == (3, 0)


async def test_a_call_started_twice_is_one(journal: Journal) -> None:
    journal.call_started("s-1", 1, "c-1", 1.0, ["first"])
    await end_call(journal, 1)
    journal.call_started("s-1", 1, "c-1", 2.0, ["again"])
    (found,) = await journal.calls("s-1")
    assert (found.record.argv, found.record.state) == (("first",), CallState.ENDED)


async def test_lost_calls_are_those_that_run_no_more(journal: Journal) -> None:
    for number in (1, 2, 3):
        journal.call_started("s-1", number, f"c-{number}", 1.0, ["x"])
    journal.call_started("s-2", 1, "c-1", 1.0, ["x"])
    await end_call(journal, 1)
    await journal.calls_lost("s-1", alive=(3,))
    states = [found.record.state for found in await journal.calls("s-1")]
    assert states == [CallState.ENDED, CallState.LOST, CallState.RUNNING]
    await journal.calls_lost("s-1")
    states = [found.record.state for found in await journal.calls("s-1")]
    assert states == [CallState.ENDED, CallState.LOST, CallState.LOST]
    assert (await journal.calls("s-2"))[0].record.state is CallState.RUNNING


async def test_only_the_outputs_of_the_newest_calls_are_kept(journal: Journal) -> None:
    extra = 10
    for number in range(1, limits.CALLS_KEPT + extra + 1):
        journal.call_started("s-1", number, f"c-{number}", 1.0, ["x"])
        if number != 3:  # still runs: its file is being written
            journal.call_ended(ended(number, RESULT, None if number % 2 else b"inline"), lambda: None)
    journal.call_started("s-2", 1, "c-1", 1.0, ["x"])
    assert await journal.prune_outputs("s-1") == [1, 5, 7, 9]
    assert await journal.prune_outputs("s-1") == [], "a file is given once"
    outputs = {number: await journal.find_call("s-1", f"c-{number}") for number in (2, extra, extra + 2)}
    assert [found.output if found else "gone" for found in outputs.values()] == [None, None, b"inline"]
    assert len(await journal.calls("s-1")) == limits.CALLS_KEPT + extra, "records stay"
    assert await journal.prune_outputs("s-2") == []


# ---- opening, closing, dying ------------------------------------------------------------------------------------


async def test_closing_brings_everything_home(path: Path) -> None:
    journal = Journal(path)
    await journal.open()
    told: list[int] = []
    for number in range(1, 301):
        journal.call_started("s-1", number, f"c-{number}", 1.0, ["x"])
        journal.call_ended(ended(number, RESULT, b""), lambda number=number: told.append(number))
    await journal.close()
    await journal.close()
    assert told == list(range(1, 301))
    async with journal_at(path) as again:
        assert [found.record.state for found in await again.calls("s-1")] == [CallState.ENDED] * 300


async def test_a_journal_of_the_future_is_refused_and_left_alone(path: Path) -> None:
    async with journal_at(path) as journal:
        await journal.add_session(row(1))
    with sqlite3.connect(path) as db:
        db.execute("UPDATE meta SET value = ?", (str(VERSION + 1),))
    db.close()
    journal = Journal(path)
    with pytest.raises(JournalError, match=f"version {VERSION + 1}") as refused:
        await journal.open()
    assert refused.value.next_step
    await journal.close()
    db = sqlite3.connect(path)
    assert db.execute("SELECT session_id FROM sessions").fetchall() == [("s-1",)]
    db.close()


async def test_a_file_that_is_no_journal_is_refused(path: Path) -> None:
    path.write_bytes(b"not a database, but long enough to be looked at" * 100)
    journal = Journal(path)
    with pytest.raises(JournalError, match=str(path)):
        await journal.open()
    await journal.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("value", [None, "one"])
async def test_a_database_of_someone_else_is_refused(path: Path, value: str | None) -> None:
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE meta (key TEXT, value TEXT)")
    if value:
        db.execute("INSERT INTO meta VALUES ('version', ?)", (value,))
    db.commit()
    db.close()
    journal = Journal(path)
    with pytest.raises(JournalError):
        async with asyncio.timeout(1):
            await journal.open()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_value_that_cannot_be_stored_is_refused_and_harms_nobody(journal: Journal) -> None:
    async with asyncio.timeout(1):
        with pytest.raises((JournalError, UnicodeEncodeError)):
            await journal.add_session(row(1, template_path="/data/\udcff"))
        await journal.add_session(row(2))


async def test_a_full_disk_is_told_and_nothing_is_called_safe(path: Path) -> None:
    """A limit of pages stands in for the disk."""
    async with journal_at(path) as journal:
        await journal.add_session(row(1))
        journal.call_started("s-1", 1, "c-1", 1.0, ["x"])
        await journal.calls("s-1")
        stop_growth(journal)
        safe: list[int] = []
        journal.call_ended(ended(1, RESULT, bytes(1 << 20)), lambda: safe.append(1))
        with pytest.raises(JournalError, match="cannot be written"):
            await journal.add_session(row(2, spec="x" * (1 << 20)))
        assert safe == []
        assert await journal.sessions() == [row(1)]
        assert (await journal.calls("s-1"))[0].record.state is CallState.RUNNING


async def test_an_end_is_not_called_safe_unless_it_is_recorded(journal: Journal) -> None:
    safe: list[int] = []
    journal.call_ended(ended(1, RESULT, b"out"), lambda: safe.append(1))
    recorded = await journal.calls("s-1")
    assert bool(safe) == bool(recorded)


def stop_growth(journal: Journal) -> None:
    def limit(db: sqlite3.Connection) -> None:
        db.execute(f"PRAGMA max_page_count = {db.execute('PRAGMA page_count').fetchone()[0] + 2}")

    journal.begin(limit, full=False)


async def test_what_is_quick_is_done_at_once_and_in_order(journal: Journal) -> None:
    seen: list[int] = []
    at_once = journal.begin(lambda _db: seen.append(1), full=False, quick=True)
    assert at_once.done()
    held = threading.Event()
    waiting = [
        journal.begin(lambda _db: held.wait(10), full=False),
        journal.begin(lambda _db: seen.append(2), full=True),
    ]
    after = journal.begin(lambda _db: seen.append(3), full=False, quick=True)
    assert not after.done(), "what was asked for before comes first"
    held.set()
    await asyncio.gather(*waiting, after)
    assert seen == [1, 2, 3]


async def test_what_is_done_at_once_is_undone_when_it_fails(journal: Journal) -> None:
    def fail(db: sqlite3.Connection) -> None:
        db.execute("INSERT INTO meta VALUES ('half', 'done')")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await journal.begin(fail, full=False, quick=True)
    count = "SELECT count(*) FROM meta WHERE key = 'half'"
    assert await journal.transact(lambda db: db.execute(count).fetchone()[0]) == 0


async def test_nobody_waits_for_a_journal_that_is_broken(journal: Journal) -> None:
    broken = journal.begin(lambda db: db.close(), full=True)
    after = [journal.begin(lambda _db: None, full=False), journal.begin(lambda _db: None, full=False, quick=True)]
    for future in (broken, *after):
        with pytest.raises(JournalError, match="cannot be written any more"):
            await asyncio.wait_for(future, 10)
    with pytest.raises(JournalError):
        await journal.set_state("s-1", SessionState.PAUSED)


CHILD = """
import asyncio, sys
from pathlib import Path
from sandlot.model import CallResult
from sandlot.host.journal import Journal
from tests.unit.host.test_journal import ended, row

async def main():
    journal = Journal(Path(sys.argv[1]))
    await journal.open()
    await journal.add_session(row(1))
    journal.call_started("s-1", 1, "c-1", 1.0, ["true"])
    safe = asyncio.Event()
    journal.call_ended(ended(1, CallResult("c-1", 0), b"kept"), safe.set)
    await safe.wait()
    print("committed", flush=True)
    for number in range(2, 100000):  # killed somewhere in here
        await journal.add_session(row(number))
        print(number, flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("lines", [1, 7])
async def test_what_was_acknowledged_survives_a_kill(path: Path, lines: int) -> None:
    command = [sys.executable, "-c", CHILD, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[3], text=True) as child:
        assert child.stdout
        acknowledged = [child.stdout.readline().strip() for _ in range(lines)]
        child.send_signal(signal.SIGKILL)
        acknowledged += child.stdout.read().split()
    assert acknowledged[0] == "committed"
    async with journal_at(path) as journal:
        kept = {session.serial for session in await journal.sessions()}
        assert {1, *map(int, acknowledged[1:])} <= kept
        found = await journal.find_call("s-1", "c-1")
        assert found
        assert (found.output, found.record.state) == (b"kept", CallState.ENDED)


async def test_no_thread_stays_behind(path: Path) -> None:
    before = set(threading.enumerate())
    async with journal_at(path):
        pass
    left = {thread.name for thread in set(threading.enumerate()) - before}
    assert "sandlot-journal" not in left
