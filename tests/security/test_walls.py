"""Attacks from inside a session, one per row: each must end at the wall that its row names."""

import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet

from tests.security import rows_calls, rows_files, rows_network, rows_proc
from tests.security.facts import host_facts, other_facts
from tests.security.rows import ATTEMPT, Row
from tests.security.stage import USER, Stage

pytestmark = pytest.mark.root

ROWS = (*rows_calls.ROWS, *rows_proc.ROWS, *rows_files.ROWS, *rows_network.ROWS)
CORE_PATTERN = Path("/proc/sys/kernel/core_pattern")


@dataclass(frozen=True, slots=True)
class Walls:
    """A session under attack, and the facts that the rows name."""

    stage: Stage
    session: str
    facts: dict[str, str]
    hostname: str
    core_pattern: str


@pytest.fixture(scope="module")
def walls(attempt_program: bytes, tmp_path_factory: pytest.TempPathFactory, stage: Stage) -> Iterator[Walls]:
    session = stage.create()
    stage.place(session, ATTEMPT, attempt_program)
    stage.shell(session, "touch mine", USER)
    with host_facts(tmp_path_factory.mktemp("host"), stage.data, stage.mark) as facts:
        yield Walls(
            stage,
            session,
            {**facts, **other_facts(stage), "session": session},
            os.uname().nodename,
            CORE_PATTERN.read_text(),
        )


def case(row: Row, user: str) -> ParameterSet:
    return pytest.param(row, user, id=f"{row.name} {user}".replace(" ", "-"))


def test_rows_have_names_of_their_own() -> None:
    names = [(row.name, user) for row in ROWS for user in row.users]
    assert len(names) == len(set(names))


def test_what_the_rows_look_for_is_there(walls: Walls) -> None:
    """Without this, a row could pass because its target is missing."""
    facts = walls.facts
    assert Path(facts["marker"]).read_text() == facts["host_mark"]
    for family, address in (
        (socket.AF_INET, ("127.0.0.1", int(facts["host_port"]))),
        (socket.AF_UNIX, f"\0{facts['host_mark']}"),
        (socket.AF_UNIX, facts["socket"]),
    ):
        with socket.socket(family) as line:
            line.connect(address)
    other = walls.stage.shell(
        facts["other"],
        "find / -name '*%other_mark%*' 2>&-; cat /proc/net/unix".replace("%other_mark%", facts["other_mark"]),
    )
    assert other.count(facts["other_mark"]) >= 3  # a file, shared memory, a socket
    os.kill(int(facts["host_pid"]), 0)


@pytest.mark.parametrize(("row", "user"), [case(row, user) for row in ROWS for user in row.users])
def test_wall(walls: Walls, row: Row, user: str) -> None:
    row.check(walls.stage.run(row.request(walls.session, user, walls.facts)), walls.facts)


def test_nothing_reached_the_host(walls: Walls) -> None:
    """Behind all rows: what they aimed at still stands."""
    os.kill(int(walls.facts["host_pid"]), 0)
    assert Path(walls.facts["marker"]).read_text() == walls.facts["host_mark"]
    mounts = Path("/proc/self/mountinfo").read_text()
    assert "sandlot" not in mounts
    assert walls.facts["data"] not in mounts
    assert os.uname().nodename == walls.hostname
    assert CORE_PATTERN.read_text() == walls.core_pattern
