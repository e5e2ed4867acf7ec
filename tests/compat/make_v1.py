"""Made the files of version 1 beside it, once. They are never made again: they prove that old ones still work.

Usage: python -m tests.compat.make_v1
"""

import asyncio
import gzip
import shutil
import sqlite3
import tempfile
from pathlib import Path

from sandlot.config.settings import load
from sandlot.host.journal import CallRow, Journal, SessionRow
from sandlot.model import CallRecord, CallResult, CallState, SessionState

HERE = Path(__file__).parent / "v1"


def session(number: int, name: str, state: SessionState, reason: str) -> SessionRow:
    return SessionRow(
        session_id=name,
        serial=number,
        state=state,
        reason=reason,
        volume=f"v-{number}",
        id_range=number,
        storage="layers",
        runtime="namespaces",
        template="builtin",
        template_path="/templates/builtin/root",
        created=1700000000.25,
        expires=1700086400.25,
        request_id=f"request-{number}",
        spec='{"labels": {"task": "demo"}, "envs": {"A": "b"}, "user": "user"}',
    )


async def write_journal(path: Path) -> None:
    journal = Journal(path)
    await journal.open()
    await journal.add_session(session(1, "first", SessionState.ACTIVE, ""))
    await journal.add_session(session(2, "second", SessionState.FAILED, "its guest ended"))
    record = CallRecord("first", "c-one", ("sh", "-c", "exit 3"), CallState.ENDED, 1700000001.5, CallResult("c-one", 3))
    journal.call_ended(CallRow(1, record, b"output"), lambda: None)
    journal.call_started("first", 2, "c-two", 1700000002.5, ["sleep", "100"])
    await journal.close()


def main() -> None:
    HERE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.db"
        asyncio.run(write_journal(path))
        db = sqlite3.connect(path)
        (HERE / "journal.sql").write_text("\n".join(db.iterdump()) + "\n")
        db.close()
    with load().keeper.open("rb") as program, gzip.GzipFile(HERE / "sandlot-keeper.gz", "wb", mtime=0) as packed:
        shutil.copyfileobj(program, packed)


if __name__ == "__main__":
    main()
