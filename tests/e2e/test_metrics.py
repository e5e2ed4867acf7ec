"""Metrics of an engine: sessions that rest are not looked at, and every face tells the same."""

import asyncio
from collections.abc import Generator
from pathlib import Path

import pytest

from sandlot import AsyncSandbox, Client, Sandbox
from sandlot.host.metrics import Metrics
from sandlot.host.service import SandboxHostService
from sandlot.model import CallRequest, MetricsRequest, ProcessSpec, SessionSpec
from tests.conftest import run
from tests.e2e.test_cli import Program, Terminal
from tests.unit.sdk.stage import directory, opened

COUNT = 12


class Counted:
    """Counts how often sessions are looked at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[str] = []
        below = Metrics._group  # pyright: ignore[reportPrivateUsage]

        def group(metrics: Metrics, session: object) -> object:
            self.seen.append(session.row.session_id)  # pyright: ignore
            return below(metrics, session)  # pyright: ignore

        monkeypatch.setattr(Metrics, "_group", group)

    def take(self) -> list[str]:
        seen, self.seen = self.seen, []
        return sorted(seen)


@pytest.mark.root
async def test_sessions_that_rest_are_not_looked_at(host: SandboxHostService, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(monkeypatch)
    sessions = [await host.create(SessionSpec(session_id=f"s-{n}", runtime="namespaces")) for n in range(COUNT)]
    metrics = host.meter
    await metrics.look()
    names = sorted(one.session_id for one in sessions)
    assert set(counted.take()) >= set(names)
    await metrics.look()
    counted.take()
    await metrics.look()
    assert counted.take() == []
    told = await host.all_metrics()
    assert sorted(one.session_id for one in told) == names
    assert counted.take() == []
    await run(host, CallRequest("s-3", ("true",)))
    await host.launch_process(ProcessSpec("s-4", ("sleep", "600")))
    await metrics.look()
    assert set(counted.take()) == {"s-3", "s-4"}
    async with host.call(CallRequest("s-5", ("sh", "-c", "sleep 600 & echo"), detach=True)) as stream:
        await stream.result()
    for _ in range(3):  # what it left runs on, without a call
        await metrics.look()
        assert "s-5" in counted.take()


@pytest.mark.root
async def test_a_session_that_is_paused_or_gone_is_told_as_it_is(host: SandboxHostService) -> None:
    from sandlot.model import PauseRequest

    session = await host.create(SessionSpec(runtime="namespaces"))
    name = session.session_id
    async with host.call(CallRequest(name, ("sleep", "600"), detach=True)) as stream:
        await anext(aiter(stream))
    ask = MetricsRequest(name, limit=1)
    before = (await host.session_metrics(ask))[-1]
    await host.pause(PauseRequest(name))
    paused = (await host.session_metrics(ask))[-1]
    assert (paused.pids, paused.calls) == (before.pids, 1)
    await host.resume(name)
    await host.destroy(name)
    assert name not in {one.session_id for one in await host.all_metrics()}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, shared_templates: Path) -> Generator[Client]:
    with directory(tmp_path_factory.mktemp("sdk") / "data", shared_templates) as data, opened(data) as made:
        yield made


def test_python_tells_what_is_used(client: Client) -> None:
    sandbox = Sandbox.create(runtime="none", storage="local-disk", client=client)
    sandbox.commands.run("echo one")
    samples = sandbox.metrics()
    assert samples[-1].session_id == sandbox.id
    assert samples[-1].calls_begun == 1
    assert (samples[-1].received_bytes, samples[-1].sent_bytes) == (None, None)  # it has the network of the machine
    assert sandbox.metrics(limit=1)[-1].cpu_s >= samples[-1].cpu_s
    assert client.metrics()[-1].sessions == 1
    assert [one.session_id for one in client.sandbox_metrics()] == [sandbox.id]
    sandbox.kill()


async def test_python_tells_it_on_a_loop_too(client: Client) -> None:
    async with await AsyncSandbox.create(runtime="none", storage="local-disk", client=client) as sandbox:
        assert (await sandbox.metrics(limit=1))[0].session_id == sandbox.id
        assert (await client.ametrics(limit=1))[0].memory.total > 0
        assert [one.session_id for one in await client.asandbox_metrics()] == [sandbox.id]


@pytest.mark.root
def test_top(data_dir: Path) -> None:
    sandlot = Program(data_dir)
    try:
        sandlot("create", "--id", "one")
        sandlot("exec", "one", "--", "true")
        told = sandlot.json("top")
        assert [one["session_id"] for one in told["sessions"]] == ["one"]
        assert (told["sessions"][0]["calls_begun"], told["host"]["sessions"]) == (1, 1)
        plain = sandlot("top").stdout.decode().splitlines()
        assert "1 sessions" in plain[0]
        assert plain[1].startswith("ID")
        assert plain[2].split()[0] == "one"
        terminal = Terminal(sandlot.words("top", "--interval", "0.2s"), columns=160)
        try:
            for _ in range(2):  # it draws again
                terminal.wait_for(b"processors")
                terminal.wait_for(b"one")
            terminal.type(b"\x03")
            assert terminal.process.wait(60) == 130
        finally:
            terminal.close()
    finally:
        sandlot("kill", "--all", "--yes")


async def test_memory_of_metrics_is_bounded(host: SandboxHostService) -> None:
    session = await host.create(SessionSpec(runtime="none", storage="local-disk"))
    async with host.call(CallRequest(session.session_id, ("sleep", "600"), detach=True)) as stream:
        await anext(aiter(stream))
    await asyncio.gather(*(host.meter.look() for _ in range(20)))
    found = await host.session_metrics(MetricsRequest(session.session_id))
    assert len(found) <= 22
    assert [one.at for one in found] == sorted(one.at for one in found)
