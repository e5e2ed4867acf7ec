"""An engine of today serves guests, and reads journals, of the versions before."""

import gzip
import json
import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from sandlot.config.settings import Settings
from sandlot.host.history import History
from sandlot.host.journal import Journal
from sandlot.host.repeats import Verb
from sandlot.host.runtimes.frames import VERSION as WIRE_VERSION
from sandlot.host.schema import VERSION as JOURNAL_VERSION
from sandlot.model import CallRequest, CallState, ChangeCounts, SessionSpec, SessionState
from sandlot.wiring.embedded import build
from tests.conftest import clean_up, run

HERE = Path(__file__).parent
OLD = HERE / "v1"


@pytest.mark.root
@pytest.mark.parametrize("version", [1, 2, 3, 4])
async def test_an_old_guest_program_is_served(settings: Settings, tmp_path: Path, version: int) -> None:
    program = tmp_path / "sandlot-keeper"
    with gzip.open(HERE / f"v{version}" / "sandlot-keeper.gz") as packed, program.open("wb") as file:
        shutil.copyfileobj(packed, file)
    program.chmod(0o755)
    async with build(replace(settings, keeper=program)) as host:
        session = await host.create(SessionSpec())
    # Another engine finds it, as after an upgrade: the old keeper and its guests are still there.
    async with build(settings) as host:
        ran = await run(host, CallRequest(session.session_id, ("sh", "-c", "echo alive; exit 4")))
        assert (ran.stdout, ran.exit_code) == (b"alive\n", 4)
        await clean_up(host)


async def test_the_first_journal_is_read(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    db = sqlite3.connect(path)
    db.executescript((OLD / "journal.sql").read_text())
    db.close()
    journal = Journal(path)
    await journal.open()
    rows = await journal.sessions()
    assert [(row.session_id, row.state, row.reason) for row in rows] == [
        ("first", SessionState.ACTIVE, ""),
        ("second", SessionState.FAILED, "its guest ended"),
    ]
    assert json.loads(rows[0].spec)["labels"] == {"task": "demo"}
    calls = await journal.calls("first")
    assert [(row.record.call_id, row.record.state) for row in calls] == [
        ("c-one", CallState.ENDED),
        ("c-two", CallState.RUNNING),
    ]
    assert calls[0].record.result
    assert calls[0].record.result.exit_code == 3
    await journal.close()


@pytest.mark.parametrize("version", [2, 3, 4, 5])
async def test_a_journal_with_a_history_is_read(tmp_path: Path, version: int) -> None:
    path = tmp_path / "journal.db"
    db = sqlite3.connect(path)
    db.executescript((HERE / f"v{version}" / "journal.sql").read_text())
    db.close()
    journal = Journal(path)
    await journal.open()
    rows = await journal.sessions()
    assert [(row.session_id, row.head, row.origin, row.forgotten) for row in rows] == [
        ("first", "mine", None, 4),
        ("second", None, "first/mine", 0),
    ]
    history = History(journal)
    assert [(row.name, row.parent, row.point) for row in await history.snapshots("first")] == [
        ("turn-0001", None, "v-1"),
        ("mine", "turn-0001", "l-2,v-1"),
    ]
    assert [(row.number, row.snapshot, row.changes) for row in await history.turns("first")] == [
        (1, "turn-0001", ChangeCounts(1, 2, 3))
    ]
    for verb, request_id, answer in (
        (Verb.TURN, "r-turn", "1"),
        (Verb.SNAPSHOT, "r-mine", "mine"),
        (Verb.FORK, "r-fork", "second"),
    ):
        assert await history.answer(verb, "first", request_id) == answer
        assert await history.answer(verb, "second", request_id) is None
    await journal.close()


def test_every_version_that_was_in_use_has_its_files_here() -> None:
    assert all((HERE / f"v{version}" / "journal.sql").is_file() for version in range(1, JOURNAL_VERSION))
    assert all((HERE / f"v{version}" / "sandlot-keeper.gz").is_file() for version in range(1, WIRE_VERSION))
