"""Events: written with what they tell, numbered for ever, kept within bounds, copied for others."""

import asyncio
import json
import sqlite3
from pathlib import Path

import pytest

from sandlot.host.events import Events
from sandlot.host.journal import Journal
from sandlot.model import Event, EventFilter, EventKind, InvalidArgument, SessionState, Unavailable, limits
from tests.unit.host.test_journal import journal_at, row

SOON_S = 30


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


async def write(journal: Journal, count: int, kind: EventKind = EventKind.TURN) -> None:
    def many(db: sqlite3.Connection) -> None:
        for number in range(count):
            journal.events.write(db, "s-1", kind, str(number))

    await journal.transact(many)


async def read(journal: Journal, request: EventFilter | None = None) -> list[Event]:
    async with Events(journal).stream(request or EventFilter()) as stream:
        return [event async for event in stream]


def copied(path: Path) -> list[int]:
    return [json.loads(line)["offset"] for line in path.with_name("events.jsonl").read_text().splitlines()]


async def test_a_change_and_its_event_are_one(path: Path) -> None:
    async with journal_at(path) as journal:
        await journal.add_session(row())
        for _again in range(2):  # the second time nothing changes
            await journal.set_state("s-1", SessionState.FAILED, "it broke", EventKind.FAILED)
        await journal.remove_session("s-1")
        await journal.remove_session("s-1")  # it was gone: nothing has happened
        told = [(event.session_id, event.kind, event.detail) for event in await read(journal)]
    assert told == [
        ("s-1", EventKind.CREATED, "builtin"),
        ("s-1", EventKind.FAILED, "it broke"),
        ("s-1", EventKind.DESTROYED, ""),
    ]


async def test_an_undone_change_has_no_event(path: Path) -> None:
    async with journal_at(path) as journal:

        def broken(db: sqlite3.Connection) -> None:
            journal.events.write(db, "s-1", EventKind.TURN, "never")
            raise ValueError("after the event")

        await journal.add_session(row())
        with pytest.raises(ValueError, match="after the event"):
            await journal.transact(broken)
        with pytest.raises(sqlite3.IntegrityError):
            await journal.add_session(row())
        await write(journal, 1)
        assert [event.kind for event in await read(journal)] == [EventKind.CREATED, EventKind.TURN]
    assert copied(path) == [1, 2]


async def test_offsets_go_on_after_a_restart(path: Path) -> None:
    async with journal_at(path) as journal:
        await write(journal, 3)
    async with journal_at(path) as journal:
        await write(journal, 2)
        assert [event.offset for event in await read(journal, EventFilter(after=2))] == [3, 4, 5]
        assert await read(journal, EventFilter(after=5)) == []
        with pytest.raises(InvalidArgument, match="no event 6 yet"):
            await read(journal, EventFilter(after=6))


async def test_another_boot_takes_new_numbers_and_tells(path: Path) -> None:
    async with journal_at(path) as journal:
        await write(journal, 3)
    db = sqlite3.connect(path)
    db.execute("UPDATE meta SET value = 'another' WHERE key = 'boot'")
    db.commit()
    db.close()
    async with journal_at(path) as journal:
        await write(journal, 1)
        first, gap, after = (await read(journal, EventFilter(session_id="s-1")))[2:]
        assert (first.kind, gap.kind, after.kind) == (EventKind.TURN, EventKind.GAP, EventKind.TURN)
        assert first.offset + 100 < gap.offset < after.offset
    assert copied(path)[-2:] == [gap.offset, after.offset]


async def test_old_ones_are_forgotten_and_that_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "EVENTS_KEPT", 100)
    async with journal_at(path) as journal:
        await write(journal, 600)
        everything = await read(journal)
        assert everything[-1].offset == 600
        assert 100 <= len(everything) < 600
        oldest = everything[0].offset
        gap, first = (await read(journal, EventFilter(after=5)))[:2]
        assert (gap.kind, gap.offset, first.offset) == (EventKind.GAP, oldest - 1, oldest)
        assert "6 to" in gap.detail
        assert (await read(journal, EventFilter(after=oldest - 1)))[0].kind is EventKind.TURN


async def test_a_follower_hears_what_comes_and_of_the_end(path: Path) -> None:
    async with journal_at(path) as journal:
        events = Events(journal)
        heard: list[int] = []

        async def follow(session_id: str) -> None:
            async with events.stream(EventFilter(session_id=session_id, follow=True)) as stream:
                async for event in stream:
                    heard.append(event.offset)

        async with asyncio.timeout(SOON_S):
            tasks = [asyncio.create_task(follow(name)) for name in ("s-1", "s-1", "other")]
            for _ in range(20):
                await write(journal, 30)
            while len(heard) < 2 * 600:  # noqa: ASYNC110 - the list sets no event
                await asyncio.sleep(0.01)
            events.close()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert sorted(heard) == sorted([*range(1, 601), *range(1, 601)])
        assert all(isinstance(error, Unavailable) for error in ended)
        assert journal.on_events is None, "nobody listens any more"


async def test_the_copy_is_made_whole_at_the_next_start(path: Path) -> None:
    async with journal_at(path) as journal:
        await write(journal, 5)
    copy = path.with_name("events.jsonl")
    lines = copy.read_bytes().splitlines(keepends=True)
    for broken in (b"".join(lines[:2]) + lines[2][:10], b"", b"no file of ours\n"):
        copy.write_bytes(broken)
        async with journal_at(path):
            pass
        assert copied(path) == [1, 2, 3, 4, 5]


async def test_the_copy_is_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "EVENT_COPY_BYTES_MAX", 20_000)  # more than are written at once
    async with journal_at(path) as journal:
        for _ in range(60):
            await write(journal, 10)
    sizes = [path.with_name(name).stat().st_size for name in ("events.jsonl", "events.jsonl.1")]
    assert max(sizes) <= 20_000
    assert copied(path)[-1] == 600


async def test_a_copy_that_cannot_be_written_harms_nobody(path: Path) -> None:
    copy = path.with_name("events.jsonl")
    async with journal_at(path) as journal:
        await write(journal, 2)
    copy.unlink()
    copy.mkdir()
    async with journal_at(path) as journal:
        await write(journal, 1)
        assert len(await read(journal)) == 3
        copy.rmdir()
        await write(journal, 1)
    assert copied(path) == [1, 2, 3, 4], "and it is made up for as soon as it can be"
