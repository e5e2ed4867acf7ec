"""Exposed ports outlive engines, and reach nothing but their session."""

import asyncio
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sandlot.config.settings import Settings
from sandlot.conformance.port_stage import ECHO, dialled, echoed, is_turned_away
from sandlot.host.service import SandboxHostService
from sandlot.model import (
    DeadlineExceeded,
    ExposeRequest,
    LimitReached,
    NotFound,
    ProcessSpec,
    ProcessState,
    Ready,
    ReadyKind,
    SessionSpec,
    limits,
)
from sandlot.wiring.embedded import build
from tests.conftest import clean_up
from tests.e2e.port_engine import OTHER, OWN, SESSION
from tests.waiting import until

# Answers every GET, and says where it listens.
HTTP = [
    sys.executable,
    "-c",
    """
import http.server
class Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *words): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
""",
]
# Waits until it is told, and then for the port.
TAKES_OVER = """
import http.server, sys, time
sys.stdin.readline()
while True:
    try:
        there = ("127.0.0.1", int(sys.argv[1]))
        http.server.ThreadingHTTPServer(there, http.server.SimpleHTTPRequestHandler).serve_forever()
    except OSError:
        time.sleep(0.05)
"""
ENDS_S = 10.0  # far less than what a connection may stay half open
assert ENDS_S < limits.HALF_CLOSED_S / 10
ENGINE = [sys.executable, "-m", "tests.e2e.port_engine"]


def kill_an_engine(data: Path) -> tuple[str, str]:
    """The addresses that it told."""
    engine = subprocess.Popen([*ENGINE, str(data)], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2], text=True)
    assert engine.stdout
    try:
        own, other = engine.stdout.readline().split()
    finally:
        engine.kill()
        engine.wait(10)
        engine.stdout.close()
    return own, other


async def serve(host: SandboxHostService, session_id: str, port: int) -> str:
    argv = ("python3", "-c", ECHO, str(port), "127.0.0.1")
    process = await host.launch_process(ProcessSpec(session_id, argv, port=port, ready=Ready(ReadyKind.PORT, port)))
    await host.wait_process(session_id, process.process_id, until=ProcessState.RUNNING, timeout_s=60)
    return process.address


async def says_back(address: str, said: bytes) -> bytes:
    async with dialled(address) as line:
        return await echoed(line, said)


@pytest.mark.root
@pytest.mark.timeout(180)
async def test_ports_outlive_an_engine_that_is_killed(settings: Settings) -> None:
    own, other = await asyncio.to_thread(kill_an_engine, settings.data)
    async with build(settings) as host:
        assert [(each.port, each.address, each.process_id) for each in await host.list_ports(SESSION)] == [
            (OWN, own, f"p{OWN}"),
            (OTHER, other, None),
        ]
        assert (await host.process_status(SESSION, f"p{OWN}")).address == own
        assert await says_back(own, b"own") == b"own"
        assert await says_back(other, b"other") == b"other"
        await host.unexpose_port(SESSION, OTHER)
        await host.kill_process(SESSION, f"p{OWN}")
        assert await host.list_ports(SESSION) == []
    async with build(settings) as host:
        assert await host.list_ports(SESSION) == []
        await clean_up(host)


@pytest.mark.root
@pytest.mark.timeout(180)
async def test_an_address_that_someone_took_meanwhile_is_another_one(settings: Settings) -> None:
    async with build(settings) as host:
        session_id = (await host.create(SessionSpec())).session_id
        address = await serve(host, session_id, OWN)
    host_port = int(address.rpartition(":")[2])
    with socket.create_server(("127.0.0.1", host_port)):
        async with build(settings) as host:
            (exposed,) = await host.list_ports(session_id)
            assert exposed.address not in ("", address)
            assert await says_back(exposed.address, b"moved") == b"moved"
            assert [each.address for each in await host.list_processes(session_id)] == [exposed.address]
    async with build(settings) as host:
        assert [each.address for each in await host.list_ports(session_id)] == [exposed.address]
        await clean_up(host)


@pytest.mark.root
async def test_a_port_reaches_what_listens_in_its_session_and_nothing_of_the_machine(host: SandboxHostService) -> None:
    session_id = (await host.create(SessionSpec())).session_id
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        with pytest.raises(NotFound):
            async with host.connect_port(session_id, port):
                pass
        exposed = await host.expose_port(ExposeRequest(session_id, port))
        assert await is_turned_away(exposed.address)
        listener.settimeout(0)
        with pytest.raises(BlockingIOError):
            listener.accept()


async def test_without_isolation_a_port_of_the_machine_is_nobodys(host: SandboxHostService) -> None:
    session_id = (await host.create(SessionSpec(runtime="none", storage="local-disk"))).session_id
    other_id = (await host.create(SessionSpec(runtime="none", storage="local-disk"))).session_id
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        with pytest.raises(NotFound):
            async with host.connect_port(session_id, port):
                pass
    address = await serve(host, session_id, port)
    assert await says_back(address, b"mine") == b"mine"
    with pytest.raises(NotFound):
        async with host.connect_port(other_id, port):
            pass


@pytest.mark.parametrize("kind", [ReadyKind.PORT, ReadyKind.HTTP])
async def test_without_isolation_a_stranger_makes_no_process_ready(host: SandboxHostService, kind: ReadyKind) -> None:
    """It is ready when a program of its session listens there and answers, and not for what the machine has there."""
    session_id = (await host.create(SessionSpec(runtime="none", storage="local-disk"))).session_id
    with subprocess.Popen(HTTP, stdout=subprocess.PIPE) as stranger:
        try:
            assert stranger.stdout
            port = int(stranger.stdout.readline())
            argv = ("python3", "-c", TAKES_OVER, str(port))
            ready = Ready(kind, port, "/" if kind is ReadyKind.HTTP else "")
            process = await host.launch_process(ProcessSpec(session_id, argv, stdin=True, ready=ready))
            with pytest.raises(DeadlineExceeded):
                await host.wait_process(session_id, process.process_id, until=ProcessState.RUNNING, timeout_s=1)
            assert (await host.process_status(session_id, process.process_id)).state is ProcessState.STARTING
        finally:
            stranger.kill()
    await host.write_process_stdin(session_id, process.process_id, b"\n")
    told = await host.wait_process(session_id, process.process_id, until=ProcessState.RUNNING, timeout_s=60)
    assert told.state is ProcessState.RUNNING


@pytest.mark.root
async def test_connections_are_bounded(host: SandboxHostService, monkeypatch: pytest.MonkeyPatch) -> None:
    session_id = (await host.create(SessionSpec())).session_id
    address = await serve(host, session_id, OWN)
    monkeypatch.setattr(limits, "CONNECTIONS_MAX", 2)
    async with dialled(address) as first, dialled(address) as second:
        for line in (first, second):
            await line.write(b"a")
            assert await line.read(1) == b"a"
        assert await is_turned_away(address)
    (exposed,) = await host.list_ports(session_id)
    assert exposed.connections <= 2
    monkeypatch.setattr(limits, "CONNECTIONS_DIALLED_MAX", 1)
    await all_ended(host, session_id)
    async with host.connect_port(session_id, OWN):
        with pytest.raises(LimitReached):
            async with host.connect_port(session_id, OWN):
                pass
    monkeypatch.setattr(limits, "PORTS_MAX", 1)
    with pytest.raises(LimitReached):
        await host.expose_port(ExposeRequest(session_id, OTHER))


@pytest.mark.root
async def test_nothing_is_left_of_many_connections(host: SandboxHostService) -> None:
    session_id = (await host.create(SessionSpec())).session_id
    address = await serve(host, session_id, OWN)
    assert await says_back(address, b"warm") == b"warm"
    await all_ended(host, session_id)
    before = descriptors()
    for _ in range(5):
        heard = await asyncio.gather(*(says_back(address, b"x" * 200_000) for _ in range(20)))
        assert heard == [b"x" * 200_000] * 20
    await all_ended(host, session_id)
    assert await until(lambda: descriptors() <= before, ENDS_S), "they are closed before a connection counts as ended"


async def all_ended(host: SandboxHostService, session_id: str) -> None:
    """Whoever is connected hears of the end from the thread that carries the bytes, and that is when it closes its
    sockets and tells the loop: the last one is counted for as long as that takes. One that was left half open would be
    counted for minutes."""
    async with asyncio.timeout(ENDS_S):
        while any(each.connections for each in await host.list_ports(session_id)):  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.005)


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.root
async def test_a_websocket_is_held_while_others_come_and_go(host: SandboxHostService) -> None:
    """Anything that is said as bytes is carried: an upgrade, frames, minutes of nothing."""
    session_id = (await host.create(SessionSpec())).session_id
    address = await serve(host, session_id, OWN)
    async with dialled(address) as held:
        await held.write(b"GET / HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
        assert (await held.read()).startswith(b"GET / HTTP/1.1")
        for number in range(10):
            assert await says_back(address, b"other %d" % number) == b"other %d" % number
            await held.write(b"\x81\x05hello")
            assert await held.read() == b"\x81\x05hello"


@pytest.mark.root
async def test_the_advertised_address_is_told(settings: Settings) -> None:
    async with build(replace(settings, advertise_address="sandboxes.example")) as host:
        session_id = (await host.create(SessionSpec())).session_id
        name, _, port = (await serve(host, session_id, OWN)).rpartition(":")
        assert name == "sandboxes.example"  # it listens on every address of the machine then
        assert await says_back(f"127.0.0.1:{port}", b"here") == b"here"
        await clean_up(host)
