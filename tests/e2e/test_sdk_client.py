"""Clients: one engine for each data directory, shared in a process, and never in two."""

import asyncio
import os
import subprocess
import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from sandlot import AsyncSandbox, CallState, Client, DataDirectoryHeld, InvalidArgument, InvalidState, Sandbox
from sandlot.host.lock import DataDirectoryLock
from sandlot.host.service import SandboxHostService
from sandlot.model import SessionSpec
from tests.unit.sdk.stage import directory, environment, program

SOON_S = 5.0


@pytest.fixture
def data(tmp_path: Path, shared_templates: Path) -> Generator[Path]:
    with directory(tmp_path / "data", shared_templates) as made:
        yield made


def kill_all(client: Client) -> None:
    for info in Sandbox.list(client=client):
        Sandbox(info.session_id, client=client).kill()


def is_free(data: Path) -> bool:
    """Soon: an engine that was cancelled, or that is being closed, may still be on its way out."""
    deadline = time.monotonic() + SOON_S
    while time.monotonic() < deadline:
        try:
            lock = DataDirectoryLock(data)
            lock.acquire()
            lock.release()
            return True
        except DataDirectoryHeld:
            time.sleep(0.01)
    return False


def test_two_clients_share_an_engine(data: Path) -> None:
    """By whatever name they call the directory. A second engine would find it held."""
    link = data.with_name("link")
    link.symlink_to(data)
    first, *others = (Client(data_dir=name) for name in (data, str(data), link, data / ".." / "data"))
    sandbox = Sandbox.create(runtime="none", client=first)
    for other in others:
        assert Sandbox.connect(sandbox.id, client=other).commands.run("echo a").stdout == "a\n"
    first.close()
    with pytest.raises(InvalidState, match="closed"):
        sandbox.info()
    others[0].close()
    assert Sandbox.connect(sandbox.id, client=others[1]).commands.run("echo b").stdout == "b\n"
    kill_all(others[1])
    for other in others:
        other.close()
        other.close()
    with Client(data_dir=data) as again:
        assert Sandbox.list(client=again) == []


def test_two_data_directories_have_two_engines(data: Path, tmp_path: Path, shared_templates: Path) -> None:
    with (
        directory(tmp_path / "other", shared_templates) as elsewhere,
        Client(data_dir=data) as here,
        Client(data_dir=elsewhere) as there,
        Sandbox.create(id="same", runtime="none", client=here) as one,
        Sandbox.create(id="same", runtime="none", client=there) as two,
    ):
        one.files.write("where", "here")
        two.files.write("where", "there")
        assert (one.files.read("where"), two.files.read("where")) == ("here", "there")


def test_a_directory_is_the_one_of_when_it_was_named(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(data.parent)
    with Client(data_dir="data") as client:
        monkeypatch.chdir("/")
        assert Sandbox.list(client=client) == []
    assert (data / "journal.db").exists()


def test_the_environment_is_asked_when_nothing_is_given(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDLOT_DATA_DIR", str(data))
    monkeypatch.setenv("SANDLOT_RUNTIME", "none")
    with Client() as client, Sandbox.create(client=client) as sandbox:
        assert sandbox.info().runtime == "none"
    monkeypatch.setenv("SANDLOT_SESSIONS_MAX", "many")
    with Client() as client, pytest.raises(InvalidArgument, match="SANDLOT_SESSIONS_MAX"):
        Sandbox.list(client=client)


def test_closing_breaks_off_what_is_under_way(data: Path) -> None:
    """Whoever waits is told, and does not wait for ever; what was left in the background lives on."""
    client = Client(data_dir=data)
    sandbox = Sandbox.create(runtime="none", client=client)
    left = sandbox.commands.run(["sleep", "60"], background=True)
    output = sandbox.commands.run("echo a; sleep 60", background=True).output()
    assert next(output).text == "a\n"
    told: list[object] = []

    def wait(work: Any) -> None:
        try:
            told.append(work())
        except InvalidState as error:
            told.append(error.message)

    works = [lambda: sandbox.commands.run("sleep 60", id="mine"), left.wait, lambda: next(output)]
    threads = [threading.Thread(target=wait, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    time.sleep(0.2)
    began = time.monotonic()
    client.close()
    for thread in threads:
        thread.join(SOON_S)
    assert [("closed" in str(each)) for each in told] == [True] * 3
    assert time.monotonic() - began < SOON_S
    with pytest.raises(InvalidState, match=r"closed.*make another one"):
        sandbox.commands.run("true")
    with Client(data_dir=data) as again:
        found = Sandbox.connect(sandbox.id, client=again)
        states = {record.call_id: record.state for record in found.commands.list()}
        assert (states[left.id], states["mine"]) == (CallState.RUNNING, CallState.ENDED)
        kill_all(again)


async def test_closing_from_a_loop(data: Path) -> None:
    async with Client(data_dir=data) as client:
        sandbox = await AsyncSandbox.create(runtime="none", client=client)
        waiting = asyncio.create_task(sandbox.commands.run("sleep 60"))
        await asyncio.sleep(0.1)
        other = Client(data_dir=data)
        assert await AsyncSandbox(sandbox.id, client=other).kill()
        await asyncio.wait([waiting])
        await other.aclose()
    with pytest.raises(InvalidState, match="closed"):
        await sandbox.info()


def test_the_first_use_from_many_threads_at_once(data: Path) -> None:
    client = Client(data_dir=data)
    together = threading.Barrier(16)
    found: list[str] = []

    def use(number: int) -> None:
        together.wait()
        with Sandbox.create(runtime="none", client=client) as sandbox:
            for step in range(3):
                found.append(sandbox.commands.run(f"echo {number}-{step}").stdout.strip())

    threads = [threading.Thread(target=use, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(found) == sorted(f"{number}-{step}" for number in range(16) for step in range(3))
    assert Sandbox.list(client=client) == []
    client.close()


def test_opening_and_closing_from_many_threads(data: Path) -> None:
    """One closes the engine while another opens it: neither finds the directory held by their own process."""
    failed: list[BaseException] = []

    def use() -> None:
        try:
            for _ in range(5):
                with Client(data_dir=data) as client:
                    Sandbox.list(client=client)
        except BaseException as error:  # noqa: BLE001 - whatever it is, is a failure
            failed.append(error)

    threads = [threading.Thread(target=use) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert failed == []


async def test_closing_while_the_engine_starts_leaves_none_behind(data: Path) -> None:
    for delay in (0.0, 0.001, 0.005, 0.02):
        client = Client(data_dir=data)
        listing = asyncio.create_task(AsyncSandbox.list(client=client))
        await asyncio.sleep(delay)
        await client.aclose()
        await asyncio.wait([listing])
        assert is_free(data)


async def test_closing_that_is_cancelled_is_done_all_the_same(data: Path) -> None:
    for delay in (0.0, 0.0005, 0.001, 0.002, 0.004):
        client = Client(data_dir=data)
        await AsyncSandbox.list(client=client)
        closing = asyncio.create_task(client.aclose())
        await asyncio.sleep(delay)
        closing.cancel()
        await asyncio.wait([closing])
        assert is_free(data)


def test_loops_come_and_go(data: Path) -> None:
    async def use(number: int) -> str:
        sandbox = await AsyncSandbox.connect("lasting", client=client)
        return (await sandbox.commands.run(f"echo {number} >> log; cat log")).stdout

    with Client(data_dir=data) as client, Sandbox.create(id="lasting", runtime="none", client=client):
        assert [asyncio.run(use(number)) for number in range(3)] == ["0\n", "0\n1\n", "0\n1\n2\n"]


async def test_the_sync_face_works_inside_a_running_loop(data: Path) -> None:
    with Client(data_dir=data) as client, Sandbox.create(runtime="none", client=client) as sandbox:
        assert sandbox.commands.run("echo a").stdout == "a\n"
        assert (await AsyncSandbox(sandbox.id, client=client).commands.run("echo b")).stdout == "b\n"
        assert [piece.text for piece in sandbox.commands.run("echo c", background=True).output()] == ["c\n"]


def test_another_process_has_the_directory(data: Path) -> None:
    """Its engine is used; and when it has left, one of our own."""
    text = "with make(id='theirs') as sandbox:\n    say('open', sandbox.id)\n    sys.stdin.readline()\n"
    holder = subprocess.Popen(
        program(data, text), env=environment(data), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdin
    assert holder.stdout
    with holder, Client(data_dir=data) as client:
        assert holder.stdout.readline().startswith("open")
        assert [info.session_id for info in Sandbox.list(client=client)] == ["theirs"]
        sandbox = Sandbox.create(runtime="none", client=client)
        holder.stdin.close()
        assert holder.wait(60) == 0
        assert sandbox.commands.run("echo ours").stdout == "ours\n"
        sandbox.kill()
        assert Sandbox.list(client=client) == []


async def test_a_host_of_ones_own_is_not_closed(host: SandboxHostService) -> None:
    session = await host.create(SessionSpec(runtime="none"))
    async with Client(host=host) as client:
        sandbox = await AsyncSandbox.connect(session.session_id, client=client)
        assert await sandbox.files.write("a", (piece for piece in (b"x", b"y")))
        assert [piece async for piece in await sandbox.files.read("a", format="stream")] == [b"xy"]
        for attempt in (
            lambda: Sandbox.create(client=client),
            lambda: Sandbox.list(client=client),
            lambda: Sandbox(sandbox.id, client=client).files.read("a"),
            lambda: next(Sandbox(sandbox.id, client=client).commands.connect("c").output()),
        ):
            with pytest.raises(InvalidState, match=r"host of one's own.*use AsyncSandbox"):
                attempt()
    with pytest.raises(InvalidState, match="closed"):
        await sandbox.info()
    assert (await host.get(session.session_id)).session_id == session.session_id
    with Client(host=host):
        pass


def test_nothing_is_left_open(data: Path) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - the number is all that is needed

    def use() -> None:
        with Client(data_dir=data) as client, Sandbox.create(runtime="none", client=client) as sandbox:
            sandbox.files.write("a", sandbox.commands.run("echo a").stdout)
            next(sandbox.files.read("a", format="stream"))

    use()
    before, threads = descriptors(), threading.active_count()
    for _ in range(5):
        use()
    deadline = time.monotonic() + SOON_S
    while descriptors() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert descriptors() <= before
    assert threading.active_count() <= threads + 20, "threads of engines that were closed"
