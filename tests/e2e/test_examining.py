"""Does the journal say what the machine holds? Differences are made by hand, told, and mended where that is safe."""

import asyncio
import os
import signal
import sqlite3
from pathlib import Path

import pytest

from sandlot import Client
from sandlot.config.settings import Settings
from sandlot.model import CallRequest, FindingKind, SessionSpec, SessionState, SnapshotRequest, TurnRequest
from sandlot.wiring.embedded import build
from tests.conftest import clean_up, run
from tests.e2e.test_cli import Program
from tests.e2e.test_recover import guests

pytestmark = [pytest.mark.root, pytest.mark.timeout(120)]

WAIT_S = 40


def change(data: Path, sql: str) -> None:
    """As if an engine had died at an unlucky moment, or a person had meddled."""
    with sqlite3.connect(data / "journal.db") as db:
        db.execute(sql)
    db.close()


def pairs(report: dict[str, list[dict[str, str]]]) -> set[tuple[str, str]]:
    return {(finding["kind"], finding["name"]) for finding in report["findings"]}


async def test_a_world_in_order_is_told_so(settings: Settings) -> None:
    sandlot = Program(settings.data)
    async with build(settings) as host:
        await host.create(SessionSpec(session_id="a"))
        await run(host, CallRequest("a", ("sh", "-c", "echo one > file")))
        await host.turn_complete(TurnRequest("a"))
        found = await host.examine()
        assert (found.sessions, found.findings, found.is_clean) == (1, (), True)
    report = sandlot.json("doctor", "--storage")
    assert (report["sessions"], report["findings"], report["is_clean"]) == (1, [], True)
    assert sandlot("doctor", "--storage").returncode == 0
    assert sandlot("doctor", "--repair").returncode == 2
    async with Client(data_dir=settings.data) as client:
        assert (await client.aexamine(repair=True)).findings == ()
    async with build(settings) as host:
        assert (await run(host, CallRequest("a", ("cat", "file")))).stdout == b"one\n"
        await clean_up(host)


async def test_an_examination_beside_work_finds_nothing(settings: Settings) -> None:
    """Sessions come and go, and what is half made is not taken for a leftover."""
    async with build(settings) as host:

        async def work(number: int) -> None:
            for again in range(4):
                name = f"s-{number}-{again}"
                await host.create(SessionSpec(session_id=name))
                await run(host, CallRequest(name, ("sh", "-c", "head -c 300000 /dev/urandom | tee file")))
                await host.turn_complete(TurnRequest(name))
                await host.destroy(name)

        working = asyncio.gather(*(work(number) for number in range(3)))
        while not working.done():
            found = await host.examine(repair=True)
            assert [f for f in found.findings if f.kind is not FindingKind.UNFINISHED] == []
        await working


async def test_every_difference_is_told_and_only_ours_is_mended(settings: Settings) -> None:
    data, sandlot = settings.data, Program(settings.data)
    async with build(settings) as host:
        for name in ("gone", "lacks", "unwanted", "begun", "whole"):
            await host.create(SessionSpec(session_id=name))
            await run(host, CallRequest(name, ("sh", "-c", f"echo {name} > file")))
        await host.create_snapshot(SnapshotRequest("lacks", "point"))
        keeper = host.keeper_pid
        (gone,) = [pid for pid in guests(host) if "gone" in root_file(pid)]
    os.kill(gone, signal.SIGKILL)
    await wait_for_end(gone)
    rows = volumes_of(data)
    layer = rows["lacks"]
    (data / "volumes" / layer).rename(data / "away")
    (data / "volumes" / "l-0123456789abcdef" / "u").mkdir(parents=True)
    (data / "volumes" / "mine").mkdir()
    (data / "outputs" / "v-0123456789abcdef").mkdir()
    (data / "outputs" / "v-0123456789abcdef" / "1.log").write_bytes(b"x")
    (data / "outputs" / "mine").mkdir()
    change(data, "DELETE FROM sessions WHERE session_id = 'unwanted'")
    change(data, "UPDATE sessions SET changing = 'snapshot' WHERE session_id = 'begun'")
    expected = {
        ("guest missing", "gone"),
        ("files missing", "lacks"),
        ("files missing", "lacks/point"),
        ("unfinished", "begun"),
    }
    strays = {
        ("guest stray", rows["unwanted"]),
        ("files stray", f"layers:{rows['unwanted']}"),
        ("files stray", "layers:l-0123456789abcdef"),
        ("output stray", "v-0123456789abcdef"),
    }
    groups: set[tuple[str, str]] = set()
    for _twice in range(2):  # looking changes nothing
        report = sandlot.json("doctor", "--storage")
        groups = {pair for pair in pairs(report) if pair[0] == "cgroup stray"}
        assert groups <= {("cgroup stray", rows["gone"])}
        assert pairs(report) - groups == expected | strays
        assert not report["is_clean"]
    report = sandlot.json("doctor", "--storage", "--repair")
    mended = {(finding["kind"], finding["name"]) for finding in report["findings"] if finding["mended"]}
    assert mended - groups == strays
    assert pairs(report) - mended == expected
    assert sandlot("doctor", "--storage").returncode == 1
    assert (data / "volumes" / "mine").is_dir()
    assert (data / "outputs" / "mine").is_dir()
    (data / "away").rename(data / "volumes" / layer)
    async with build(settings) as host:
        assert host.keeper_pid == keeper
        assert (await host.get("gone")).state is SessionState.FAILED
        await host.recover("gone")
        for name in ("gone", "lacks", "begun", "whole"):
            assert (await run(host, CallRequest(name, ("cat", "file")))).stdout == f"{name}\n".encode()
        assert (await host.examine()).findings == ()
        await clean_up(host)


def volumes_of(data: Path) -> dict[str, str]:
    with sqlite3.connect(data / "journal.db") as db:
        found = dict(db.execute("SELECT session_id, volume FROM sessions").fetchall())
    db.close()
    return found


def root_file(pid: int) -> str:
    return Path(f"/proc/{pid}/root/workspace/file").read_text()


async def wait_for_end(pid: int) -> None:
    async with asyncio.timeout(WAIT_S):
        while Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_a_start_leaves_what_is_not_ours(settings: Settings) -> None:
    for folder in ("volumes/lost+found", "volumes/notes", "outputs/lost+found"):
        (settings.data / folder).mkdir(parents=True)
        (settings.data / folder / "file").write_text("mine")
    (settings.data / "volumes" / "v-0123456789abcdef" / "u").mkdir(parents=True)
    async with build(settings) as host:
        await host.create(SessionSpec(session_id="s"))
        await clean_up(host)
    for folder in ("volumes/lost+found", "volumes/notes", "outputs/lost+found"):
        assert (settings.data / folder / "file").read_text() == "mine"
    assert not (settings.data / "volumes" / "v-0123456789abcdef").exists()
