"""Reading the events that an engine writes beside its journal, while it does."""

import json
from pathlib import Path

import pytest

from sandlot.cli.events import Copy


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


def line(offset: int) -> str:
    return json.dumps({"offset": offset, "at": 1.0, "session_id": "s", "kind": "turn", "detail": ""}) + "\n"


def write(path: Path, *offsets: int, torn: str = "") -> None:
    with path.open("a") as file:
        file.write("".join(map(line, offsets)) + torn)


def offsets(copy: Copy) -> list[int]:
    return [event.offset for event in copy.read()]


def test_it_need_not_be_there_yet(path: Path) -> None:
    copy = Copy(path)
    assert offsets(copy) == []
    write(path, 1, 2)
    assert offsets(copy) == [1, 2]
    assert offsets(copy) == []
    copy.close()


def test_a_line_is_read_when_it_is_whole(path: Path) -> None:
    copy = Copy(path)
    write(path, 1, torn=line(2)[:20])
    assert offsets(copy) == [1]
    write(path, torn=line(2)[20:])
    assert offsets(copy) == [2]
    write(path, torn=line(3)[:20])
    assert offsets(copy) == []
    # The writer died, and the next one cuts off what it began.
    path.write_text("".join(map(line, (1, 2, 4))))
    assert offsets(copy) == [4]
    copy.close()


def test_nothing_is_missed_when_a_full_file_is_put_aside(path: Path) -> None:
    copy = Copy(path)
    write(path, 1, 2)
    assert offsets(copy) == [1, 2]
    write(path, 3)
    path.rename(path.with_name("events.jsonl.1"))
    write(path, 4, 5)
    assert set(offsets(copy)) >= {3, 4, 5}
    write(path, 6)
    assert offsets(copy) == [6]
    copy.close()
    again = Copy(path)
    assert offsets(again) == [1, 2, 3, 4, 5, 6]
    again.close()


def test_what_is_no_event_is_passed_over(path: Path) -> None:
    path.write_text("nonsense\n" + line(1) + '{"kind": "unheard of"}\n[]\n' + line(2))
    copy = Copy(path)
    assert offsets(copy) == [1, 2]
    copy.close()
