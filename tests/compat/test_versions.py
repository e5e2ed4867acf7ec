"""An engine of today serves guests, and reads journals, of the versions before."""

import gzip
import json
import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from sandlot.config.settings import Settings
from sandlot.host.journal import VERSION as JOURNAL_VERSION
from sandlot.host.journal import Journal
from sandlot.host.runtimes.frames import VERSION as WIRE_VERSION
from sandlot.model import CallRequest, CallState, SessionSpec, SessionState
from sandlot.wiring.embedded import build
from tests.conftest import clean_up, run

OLD = Path(__file__).parent / "v1"


@pytest.mark.root
async def test_the_first_guest_program_is_served(settings: Settings, tmp_path: Path) -> None:
    program = tmp_path / "sandlot-keeper"
    with gzip.open(OLD / "sandlot-keeper.gz") as packed, program.open("wb") as file:
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


def test_the_versions_kept_here_are_the_oldest_ones_in_use() -> None:
    """When a version moves past the next one, its files here may go, and this test with them."""
    assert max(JOURNAL_VERSION, WIRE_VERSION) <= 2
