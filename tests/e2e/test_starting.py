"""What a template starts: a session of it serves when it is handed out, cold or warm, and again after what ended it."""

import asyncio
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from sandlot import AsyncSandbox, Client
from sandlot.config.settings import Settings
from sandlot.host.service import SandboxHostService
from sandlot.model import (
    CallRequest,
    CallState,
    Conflict,
    ForkRequest,
    InvalidArgument,
    Ready,
    ReadyKind,
    RollbackRequest,
    SessionFilter,
    SessionSpec,
    SessionState,
    SnapshotRequest,
    Start,
    StartFailed,
    TemplateImport,
    TemplateInfo,
)
from sandlot.wiring.embedded import build
from tests.archives import Image, busybox_members, entry, folder, link, tar
from tests.conftest import clean_up, run

pytestmark = pytest.mark.root
HTTPD = "echo begun >> /tmp/starts; sleep 0.2; exec httpd -f -p 127.0.0.1:8000 -h /www"
ASK = "wget -q -O - http://127.0.0.1:8000/index.html"
SERVED = ("http 8000 /index.html", "port 8000")


def root_tar() -> bytes:
    more = (link(f"./bin/{name}", "busybox") for name in ("httpd", "wget", "sleep", "kill", "nc"))
    return tar(*busybox_members(), *more, folder("./www"), entry("./www/index.html", b"served\n"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "root.tar"
    path.write_bytes(root_tar())
    return path


async def make(host: SandboxHostService, path: Path, start: Start | None, name: str = "web:1") -> TemplateInfo:
    async with host.make_template(TemplateImport(str(path), name, start=start)) as events:
        async for event in events:
            if isinstance(event, TemplateInfo):
                return event
    raise AssertionError("nothing was made")


async def serve(host: SandboxHostService, path: Path, ready: str = "port 8000", timeout_s: float = 10.0) -> None:
    await make(host, path, Start.of(HTTPD, ready, timeout_s))


async def said(host: SandboxHostService, session_id: str, command: str = ASK) -> str:
    return (await run(host, CallRequest(session_id, ("/bin/sh", "-c", command)))).stdout.decode()


@pytest.mark.parametrize("ready", SERVED)
async def test_a_session_serves_when_it_is_handed_out(host: SandboxHostService, root: Path, ready: str) -> None:
    await serve(host, root, ready)
    session = await host.create(SessionSpec(template="web:1"))
    assert await said(host, session.session_id) == "served\n"
    assert session.start_call == "start-1"
    calls = await host.calls(session.session_id)
    assert [(call.call_id, call.state) for call in calls][:1] == [("start-1", CallState.RUNNING)]
    other = await host.create(SessionSpec(template="web:1", starts=False))
    assert (other.start_call, await said(host, other.session_id)) == (None, "")


async def test_the_sdk_can_leave_it_out(settings: Settings, root: Path) -> None:
    async with build(settings) as host:
        await serve(host, root)
    async with Client(data_dir=settings.data) as client:
        for start, told in ((True, ["start-1"]), (False, [])):
            async with await AsyncSandbox.create("web:1", start=start, client=client) as sandbox:
                assert [call.call_id for call in await sandbox.commands.list()] == told


async def test_a_line_of_its_output_says_that_it_is_ready(host: SandboxHostService, root: Path) -> None:
    await make(host, root, Start.of("echo one; sleep 0.3; printf 'two ready'; sleep 100", "log two ready", 10.0))
    before = time.monotonic()
    session = await host.create(SessionSpec(template="web:1"))
    assert time.monotonic() - before > 0.3
    async with host.attach(session.session_id, session.start_call or "") as stream:
        async for event in stream:
            if b"two ready" in getattr(event, "data", b""):
                break


async def test_gvisor_sessions_serve_too(host: SandboxHostService, root: Path) -> None:
    ready = next(probe for probe in (await host.probes())[1] if probe.name == "gvisor")
    if not ready.ready:
        pytest.skip(f"gvisor: {ready.reason}")
    await serve(host, root, SERVED[0], 30.0)
    session = await host.create(SessionSpec(template="web:1", runtime="gvisor"))
    assert await said(host, session.session_id) == "served\n"


async def test_one_that_is_not_ready_makes_no_session(host: SandboxHostService, root: Path) -> None:
    cases = (
        ("echo no luck >&2; exit 3", "port 8000", "ended with 3 before it was ready; it printed last: no luck"),
        (
            "echo still at it; sleep 100",
            "port 8000",
            "was not ready (port 8000) within 0.6 s; it printed last: still at",
        ),
        (f"sh -c '{HTTPD}'", "http 8000 /missing", "was not ready (http 8000 /missing) within 0.6 s"),
        ("echo other", "log never", "ended with 0 before it was ready; it printed last: other"),
        ("exec /no/such/program", "running", "ended with 127"),
        ("nc -l -p 8000 127.0.0.1", "http 8000", "was not ready (http 8000 /) within 0.6 s"),
    )
    for number, (command, ready, words) in enumerate(cases):
        await make(host, root, Start.of(command, ready, 0.6), f"bad:{number}")
        with pytest.raises(StartFailed) as caught:
            await host.create(SessionSpec(template=f"bad:{number}"))
        assert words in caught.value.message
        assert caught.value.next_step
    assert (await host.list(SessionFilter())).sessions == ()


async def test_a_warm_one_is_serving_already(host: SandboxHostService, root: Path, settings: Settings) -> None:
    await serve(host, root, SERVED[0])
    told = await host.warm_template("web:1", 1)
    assert told.sessions == 1
    began = time.monotonic()
    session = await host.create(SessionSpec(template="web:1"))
    assert time.monotonic() - began < 0.15, "it was started when it was asked for"
    assert await said(host, session.session_id) == "served\n"
    assert (await host.calls(session.session_id))[0].call_id == session.start_call == "start-1"
    # Another user or other variables are not those of what runs already.
    other = await host.create(SessionSpec(template="web:1", envs={"A": "b"}))
    assert await said(host, other.session_id, "cat /proc/[0-9]*/environ | grep -c A=b") != "0\n"
    # While one waits, the template is in use; without, it is free.
    await host.warm_template("web:1", 1)
    await clean_up(host)
    with pytest.raises(Conflict):
        await host.remove_template("web:1")
    await host.warm_template("web:1", 0)
    async with asyncio.timeout(10):
        while list((settings.data / "volumes").iterdir()):  # noqa: ASYNC110 - nobody tells when it is given up
            await asyncio.sleep(0.01)
    await host.remove_template("web:1")
    assert list((settings.data / "outputs").iterdir()) == []


async def test_a_warm_one_that_ceased_to_serve_is_not_handed_out(host: SandboxHostService, root: Path) -> None:
    await make(host, root, Start.of("echo up; sleep 0.4", "log up", 5.0))
    await host.warm_template("web:1", 1)
    await asyncio.sleep(0.8)
    session = await host.create(SessionSpec(template="web:1"))
    assert (await host.calls(session.session_id))[0].state is CallState.RUNNING


async def test_a_template_that_is_to_be_warm_and_is_not_there_is_told(settings: Settings) -> None:
    async with build(replace(settings, warm_templates=(("missing:1", 1),))) as host:
        async with asyncio.timeout(10):
            while not (failures := (await host.health()).errors):  # noqa: ASYNC110 - it is tried behind our back
                await asyncio.sleep(0.05)
        assert "no guest of missing:1 can be kept warm: there is no template" in failures[0].message


async def test_a_name_that_means_another_template_is_warmed_anew(host: SandboxHostService, root: Path) -> None:
    await serve(host, root)
    await host.warm_template("web:1", 1)
    await make(host, root, Start.of("sleep 100", "running", 5.0), "other:1")
    await host.tag_template("other:1", "web:1")
    await host.warm_template("web:1", 1)
    session = await host.create(SessionSpec(template="web:1"))
    assert (await host.calls(session.session_id))[0].argv[-1] == "sleep 100"


async def test_it_is_started_again_after_a_rollback_a_fork_and_a_recovery(host: SandboxHostService, root: Path) -> None:
    await serve(host, root)
    session_id = (await host.create(SessionSpec(template="web:1"))).session_id
    await host.create_snapshot(SnapshotRequest(session_id, "point"))
    rolled = await host.rollback(RollbackRequest(session_id, "point"))
    assert rolled.start_call not in (None, "start-1")
    assert await said(host, session_id) == "served\n"
    assert (await said(host, session_id, "cat /tmp/starts")).count("begun") == 2
    [child] = await host.fork(ForkRequest(session_id, "point"))
    assert await said(host, child.session_id) == "served\n"
    guest = host._lifecycle.find(session_id).guest  # pyright: ignore[reportPrivateUsage] - to end it
    assert guest is not None
    os.kill(guest.pid, signal.SIGKILL)
    async with asyncio.timeout(10):
        while (await host.get(session_id)).state is not SessionState.FAILED:  # noqa: ASYNC110 - it becomes it by itself
            await asyncio.sleep(0.01)
    recovered = await host.recover(session_id)
    assert recovered.state is SessionState.ACTIVE
    assert await said(host, session_id) == "served\n"


async def test_the_next_engine_knows_it_and_a_session_rests_while_it_serves(settings: Settings, root: Path) -> None:
    async with build(settings) as host:
        await serve(host, root)
        spec = SessionSpec(template="web:1", idle_timeout_s=0.3, request_id="once")
        session_id = (await host.create(spec)).session_id
    async with build(settings) as host:
        again = await host.create(SessionSpec(template="web:1", idle_timeout_s=0.3, request_id="once"))
        assert (again.session_id, again.start_call) == (session_id, "start-1")
        assert await said(host, session_id) == "served\n"
        async with asyncio.timeout(10):
            while (await host.get(session_id)).state is not SessionState.PAUSED:  # noqa: ASYNC110 - by itself
                await asyncio.sleep(0.02)
        assert await said(host, session_id) == "served\n"
        await clean_up(host)


async def test_what_an_image_runs_can_be_what_is_started(host: SandboxHostService, tmp_path: Path) -> None:
    config = {"Entrypoint": ["/bin/sh", "-c"], "Cmd": [HTTPD]}
    image = Image(layers=[root_tar()], config=config)
    path = tmp_path / "image.tar"
    path.write_bytes(image.saved())
    made = await make(host, path, Start.of(None, "port 8000", None))
    assert made.start == Start(("/bin/sh", "-c", HTTPD), Ready(ReadyKind.PORT, 8000))
    session = await host.create(SessionSpec(template="web:1"))
    assert await said(host, session.session_id) == "served\n"
    (tmp_path / "bare.tar").write_bytes(root_tar())
    with pytest.raises(InvalidArgument, match="neither ENTRYPOINT nor CMD"):
        await make(host, tmp_path / "bare.tar", Start.of(None, "port 8000", None))
