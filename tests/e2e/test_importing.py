"""Files that sessions are made from: whoever wrote them, a session is made whole or not at all."""

import asyncio
import contextlib
import gzip
import itertools
import json
import os
import random
import subprocess
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from sandlot import AsyncSandbox, Client, Sandbox
from sandlot.config.settings import Settings
from sandlot.host.archives.entries import Entry, Kind
from sandlot.host.archives.writing import MANIFEST, ArchiveWriter
from sandlot.host.service import SandboxHostService
from sandlot.model import (
    CallRequest,
    DeadlineExceeded,
    ExportRequest,
    ForkRequest,
    ImportRequest,
    InvalidArgument,
    LimitReached,
    SandlotError,
    SessionExists,
    SessionFilter,
    SessionSpec,
    SessionState,
    Start,
    TemplateImport,
    TemplateNotFound,
    TurnRequest,
    limits,
)
from tests.archives import busybox_members, tar
from tests.conftest import run

pytestmark = pytest.mark.root

HERE = Path(__file__).parents[1]
GOLDEN = HERE / "compat" / "exports" / "v1.tar.gz"
TOP = Entry("/", Kind.DIRECTORY, 0o755)


async def pieces(data: bytes, size: int = 10_000) -> AsyncIterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


async def export(host: SandboxHostService, session_id: str) -> bytes:
    async with host.export(ExportRequest(session_id)) as stream:
        return b"".join([piece async for piece in stream])


async def make(host: SandboxHostService, session_id: str = "origin") -> bytes:
    await host.create(SessionSpec(session_id, labels={"a": "b"}, envs={"KEY": "value"}))
    await sh(host, session_id, "echo one > one; mkdir d; ln -s one link")
    await host.turn_complete(TurnRequest(session_id))
    await sh(host, session_id, "echo two > d/two")
    return await export(host, session_id)


async def sh(host: SandboxHostService, session_id: str, text: str) -> str:
    ran = await run(host, CallRequest(session_id, ("sh", "-ec", text)))
    assert ran.exit_code == 0, ran
    return ran.stdout.decode()


async def nothing_came(host: SandboxHostService, *, but: Sequence[str] = ("origin",)) -> None:
    sessions = (await host.list(SessionFilter())).sessions
    assert [session.session_id for session in sessions] == [*but]
    async with asyncio.timeout(20):
        while (await host.examine()).findings:  # noqa: ASYNC110 - many things, each with its own end
            await asyncio.sleep(0.05)


def manifest_of(data: bytes) -> dict[str, Any]:
    plain = gzip.decompress(data)
    size = int(plain[124:135], 8)
    return json.loads(plain[512 : 512 + size])


def forge(manifest: object, *entries: Entry) -> bytes:
    writer = ArchiveWriter()
    parts = (writer.document(MANIFEST, manifest), writer.section("now", (TOP, *entries)), writer.end())
    return b"".join(itertools.chain(*parts))


def plain(manifest: dict[str, Any]) -> dict[str, Any]:
    """Without a history."""
    manifest["session"] |= {"head": None, "last_turn": 0}
    return manifest | {"snapshots": [], "turns": []}


async def test_files_that_are_cut_or_changed_leave_nothing(host: SandboxHostService) -> None:
    data = await make(host)
    rng = random.Random(5)
    cut = [data[: rng.randrange(len(data))] for _ in range(6)]
    tar = gzip.decompress(data)
    for at in rng.sample(range(len(tar)), 10):
        changed = bytearray(tar)
        changed[at] ^= 1
        cut.append(gzip.compress(bytes(changed), 1))
    for broken in cut:
        with pytest.raises((InvalidArgument, LimitReached)):
            await host.import_session(ImportRequest("copy"), pieces(broken))
    await nothing_came(host)
    made = await host.import_session(ImportRequest("copy"), pieces(data, 100))
    assert (made.state, made.labels, made.turn_count) == (SessionState.ACTIVE, {"a": "b"}, 1)
    assert await sh(host, "copy", "cat one link d/two; echo $KEY") == "one\none\ntwo\nvalue\n"


async def test_a_session_is_not_made_twice_and_has_another_id_on_demand(host: SandboxHostService) -> None:
    data = await make(host)
    with pytest.raises(SessionExists):
        await host.import_session(ImportRequest(), pieces(data))
    await host.destroy("origin")
    assert (await host.import_session(ImportRequest(), pieces(data))).session_id == "origin"
    assert await sh(host, "origin", "cat d/two") == "two\n"


async def test_links_of_an_export_lead_nowhere(host: SandboxHostService, tmp_path: Path) -> None:
    """What is put behind a link would be put onto the machine, were it followed."""
    manifest = plain(manifest_of(await make(host)))
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    link = Entry("/workspace/out", Kind.SYMLINK, 0o777, target=str(outside))
    workspace = Entry("/workspace", Kind.DIRECTORY, 0o755)
    content = Entry("/workspace/out/kept", Kind.FILE, 0o644, size=4, extents=((0, 4),), content=iter([b"evil"]))
    for entry in (
        content,
        Entry("/workspace/out/kept", Kind.REMOVED),
        Entry("/workspace/out/kept", Kind.KEPT, 0o777),
        Entry("/workspace/out/new", Kind.DIRECTORY, 0o777),
        Entry("/workspace/p", Kind.LINK, target="/workspace/out/kept"),
        Entry("/workspace/p", Kind.LINK, target="/workspace"),
        Entry("/workspace/p/q", Kind.PIPE, 0o600),
    ):
        with pytest.raises(InvalidArgument):
            await host.import_session(ImportRequest("copy"), pieces(forge(manifest, workspace, link, entry)))
    assert [path.name for path in outside.iterdir()] == ["kept"]
    assert (outside / "kept").read_text() == "kept"
    assert (outside / "kept").stat().st_mode & 0o777 != 0o777
    await nothing_came(host)


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("id", "../x"), ("id", 5), ("labels", {"a": 5}), ("envs", {"a=b": "c"}), ("user", "a\0b"), ("head", "nowhere"),
        ("resources", {"pids": "many"}), ("resources", {"pids": float("nan")}), ("resources", {"none": 1}),
        ("resources", []), ("on_expiry", "explode"), ("last_turn", -1), ("last_turn", True), ("template", "../x"),
        ("idle_timeout_s", float("inf")), ("call_snapshots", "x" * 10), ("forgotten", 1 << 80),
    ],
)  # fmt: skip
async def test_a_manifest_is_not_believed(host: SandboxHostService, where: str, value: object) -> None:
    manifest = plain(manifest_of(await make(host)))
    manifest["session"][where] = value
    with contextlib.suppress(SandlotError):
        made = await host.import_session(ImportRequest("copy"), pieces(forge(manifest)))
        assert where == "call_snapshots", made  # what is not true is not asked for
        await host.destroy("copy")
    await nothing_came(host)


@pytest.mark.parametrize("what", ["snapshots", "turns"])
async def test_a_history_is_not_believed(host: SandboxHostService, what: str) -> None:
    manifest = manifest_of(await make(host))
    known: dict[str, Any] = manifest[what][0]
    wrong: tuple[Any, ...] = ("../x", -1, None, [], {})
    for name, value in itertools.product(known, wrong):
        forged: dict[str, Any] = plain(json.loads(json.dumps(manifest)))
        forged[what] = [{**known, name: value}]
        if what == "turns":
            forged["session"]["last_turn"] = 1
        with contextlib.suppress(SandlotError):
            await host.import_session(ImportRequest("copy"), pieces(forge(forged)))
            await host.destroy("copy")
    await nothing_came(host)


async def test_what_unpacks_to_more_than_there_is_room_for_is_refused(
    host: SandboxHostService, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = plain(manifest_of(await make(host)))
    size = 32 << 20
    content = itertools.repeat(bytes(1 << 20), 32)
    bomb = Entry("/bomb", Kind.FILE, 0o644, size=size, extents=((0, size),), content=iter(content))
    data = forge(manifest, bomb)
    assert len(data) < size // 100
    monkeypatch.setattr(limits, "IMPORT_ROOM", 1e-9)
    with pytest.raises(LimitReached, match="more than there is room for"):
        await host.import_session(ImportRequest("copy"), pieces(data))
    await nothing_came(host)


async def test_a_template_that_is_not_here_is_named(host: SandboxHostService) -> None:
    manifest = plain(manifest_of(await make(host)))
    manifest["session"]["template"] = "other"
    with pytest.raises(TemplateNotFound, match="other"):
        await host.import_session(ImportRequest("copy"), pieces(forge(manifest)))
    manifest["session"] |= {"template": "builtin", "template_mark": "builtin-of-another-machine"}
    with pytest.raises(TemplateNotFound, match="builtin-of-another-machine"):
        await host.import_session(ImportRequest("copy"), pieces(forge(manifest)))
    await nothing_came(host)
    await host.import_session(ImportRequest("copy", template="builtin"), pieces(forge(manifest)))
    assert await sh(host, "copy", "echo here") == "here\n"


async def test_whoever_stops_sending_leaves_nothing(host: SandboxHostService, monkeypatch: pytest.MonkeyPatch) -> None:
    data = await make(host)
    stalled = asyncio.Event()

    async def stall() -> AsyncIterator[bytes]:
        yield data[: len(data) // 2]
        stalled.set()
        await asyncio.Event().wait()

    importing = asyncio.create_task(host.import_session(ImportRequest("copy"), stall()))
    await stalled.wait()
    importing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await importing
    monkeypatch.setattr(limits, "IMPORT_IDLE_S", 0.5)
    with pytest.raises(DeadlineExceeded):
        await host.import_session(ImportRequest("copy"), stall())

    async def fail() -> AsyncIterator[bytes]:
        yield data[: len(data) // 2]
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await host.import_session(ImportRequest("copy"), fail())
    await nothing_came(host)


async def test_an_export_of_the_first_version_is_read(host: SandboxHostService) -> None:
    data = await asyncio.to_thread(GOLDEN.read_bytes)
    made = await host.import_session(ImportRequest("old", template="builtin"), pieces(data))
    assert (made.turn_count, made.labels, made.head) == (2, {"from": "version 1"}, "turn-0002")
    assert await sh(host, "old", "cat a; readlink link; stat -c %a d; ls /opt") == "now\na\n1777\nmade\n"
    calls = [call.argv[-1] for turn in await host.turns("old") for call in turn.calls]
    assert len(calls) == 2
    (fork,) = await host.fork(ForkRequest("old", "1"))
    assert await sh(host, fork.session_id, "cat a") == "one\n"


async def test_the_sdk_exports_imports_and_moves(settings: Settings, tmp_path: Path) -> None:
    async with Client(data_dir=settings.data) as client:
        async with await AsyncSandbox.create(id="mine", client=client) as sandbox:
            await sandbox.files.write("a", "text")
            await sandbox.turn()
            size = await sandbox.export(tmp_path / "out.tar.gz")
            assert size == (tmp_path / "out.tar.gz").stat().st_size
            assert [path.name for path in tmp_path.iterdir() if path.suffix == ".partial"] == []
            assert (await sandbox.move("auto")).session_id == "mine"
            with pytest.raises(OSError, match="No such file"):
                await sandbox.export(tmp_path / "nowhere" / "out.tar.gz")
        async with await AsyncSandbox.import_session(tmp_path / "out.tar.gz", client=client) as again:
            assert again.id == "mine"
            assert await again.files.read("a") == "text"
            assert [turn.number for turn in await again.turns()] == [1]


def test_the_sync_sdk_does_the_same(settings: Settings, tmp_path: Path) -> None:
    with Client(data_dir=settings.data) as client, Sandbox.create(client=client) as sandbox:
        sandbox.files.write("a", "text")
        sandbox.export(tmp_path / "out.tar.gz")
        told: list[object] = []
        sandbox.move("layers", on_progress=told.append)
        with (tmp_path / "out.tar.gz").open("rb") as file, Sandbox.import_session(file, id="b", client=client) as b:
            assert b.files.read("a") == "text"


def cli(settings: Settings, *words: str, stdin: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
    environment = {**os.environ, "SANDLOT_DATA_DIR": str(settings.data)}
    command = [str(HERE.parent / ".venv" / "bin" / "sandlot"), *words]
    return subprocess.run(command, input=stdin, capture_output=True, env=environment, check=False, timeout=120)


def test_the_command_line_exports_imports_and_moves(settings: Settings, tmp_path: Path) -> None:
    assert cli(settings, "create", "--id", "one").returncode == 0
    assert cli(settings, "exec", "one", "--", "sh", "-c", "echo text > a").returncode == 0
    wrote = cli(settings, "export", "one", str(tmp_path / "one.tar.gz"), "--json")
    assert json.loads(wrote.stdout)["size_bytes"] == (tmp_path / "one.tar.gz").stat().st_size
    data = cli(settings, "export", "one", "-").stdout
    assert data[:2] == b"\x1f\x8b"
    made = cli(settings, "import", "-", "--id", "two", "--json", stdin=data)
    assert json.loads(made.stdout)["storage"] == "layers", made
    assert cli(settings, "exec", "two", "--", "cat", "a").stdout == b"text\n"
    again = cli(settings, "import", str(tmp_path / "one.tar.gz"), "--json")
    assert json.loads(again.stdout)["error"]["code"] == "session_exists"
    moved = cli(settings, "move", "two", "--storage", "layers", "--json")
    assert json.loads(moved.stdout)["storage"] == "layers", moved
    wrong = cli(settings, "move", "two", "--storage", "nowhere")
    assert (wrong.returncode, b"nowhere" in wrong.stderr) == (2, True)
    assert cli(settings, "kill", "one", "two").returncode == 0


async def test_a_session_on_a_template_of_ones_own_comes_back(host: SandboxHostService, tmp_path: Path) -> None:
    """With what its template says, on the same host and by name."""
    (tmp_path / "root.tar").write_bytes(tar(*busybox_members()))
    made = TemplateImport(str(tmp_path / "root.tar"), "tiny:1", start=Start.of("sleep 1000", "running", 10.0))
    async with host.make_template(made) as events:
        assert [event async for event in events]
    await host.create(SessionSpec("origin", template="tiny:1", envs={"KEY": "value"}))
    assert (await run(host, CallRequest("origin", ("sh", "-ec", "echo one > one; chmod 600 one")))).exit_code == 0
    await host.turn_complete(TurnRequest("origin"))
    data = await export(host, "origin")
    session = await host.import_session(ImportRequest("copy"), pieces(data))
    assert (session.template, session.turn_count) == ("tiny:1", 1)
    ran = await run(host, CallRequest("copy", ("sh", "-ec", "cat one; echo $KEY; stat -c %a one")))
    assert ran.stdout == b"one\nvalue\n600\n"
    await host.destroy("copy")
    named = await host.import_session(ImportRequest("copy", template="tiny:1"), pieces(data))
    assert (named.template, named.session_id) == ("tiny:1", "copy")
