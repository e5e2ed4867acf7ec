"""A host as one file, taken while it works, and a host that is made of it again."""

import asyncio
import gzip
import io
import json
import os
import shutil
import sqlite3
import subprocess
import tarfile
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sandlot.config.settings import Settings, load
from sandlot.host.archives.entries import Entry, Kind
from sandlot.host.archives.writing import ArchiveWriter
from sandlot.host.service import SandboxHostService
from sandlot.host.templates import store
from sandlot.model import (
    CallRequest,
    Conflict,
    EventFilter,
    EventKind,
    ForkRequest,
    InvalidArgument,
    InvalidState,
    Mount,
    PauseRequest,
    Restored,
    RestoreRequest,
    SessionSpec,
    SessionState,
    TemplateImport,
    TemplateNotFound,
    TurnRequest,
    VolumeSpec,
)
from sandlot.wiring.embedded import build
from tests import storages
from tests.conftest import clean_up
from tests.e2e.test_cli import Program
from tests.e2e.test_moving import SPECIAL, history, look, pieces, script, sh

pytestmark = [pytest.mark.root, pytest.mark.timeout(180)]

# Two files that say the same, or the first is one ahead: at no moment anything else.
WRITER = """
import os
n = 0
while True:
    n += 1
    for name in ("first", "second"):
        with open(name + ".new", "w") as file: file.write(str(n))
        os.rename(name + ".new", name)
"""


def without(settings: Settings, tmp_path: Path) -> Settings:
    """Another data directory, with nothing in it but the cache of the built-in template."""
    data = tmp_path / "again"
    data.mkdir(mode=0o700, exist_ok=True)
    if not (data / "templates").exists():
        (data / "templates").symlink_to((settings.data / "templates").resolve())
    return replace(settings, data=data)


async def backup(host: SandboxHostService) -> bytes:
    async with host.backup() as stream:
        return b"".join([piece async for piece in stream])


async def restore(settings: Settings, data: bytes, **wishes: Any) -> Restored:
    return (
        await build(settings)
        .restores()
        .restore(RestoreRequest(**wishes), pieces(data, 1 << 20), lambda _what, _count, _of: None)
    )


@asynccontextmanager
async def restored(settings: Settings, data: bytes, **wishes: Any) -> AsyncGenerator[SandboxHostService]:
    await restore(settings, data, **wishes)
    async with build(settings) as host:
        yield host
        assert (await host.examine()).findings == ()
        await clean_up(host)


async def taken(settings: Settings) -> bytes:
    """Of a host with one session."""
    async with build(settings) as host:
        made = await host.create(SessionSpec(session_id="one", storage="layers"))
        await sh(host, made.session_id, "echo kept > kept")
        await host.turn_complete(TurnRequest(made.session_id))
        data = await backup(host)
        await clean_up(host)
    return data


def is_empty(data: Path) -> bool:
    return not data.exists() or {path.name for path in data.iterdir()} <= {"templates"}


@pytest.mark.parametrize("name", ["layers", "btrfs", "local-disk"])
async def test_a_backup_under_load_is_restored_to_one_moment(data_dir: Path, tmp_path: Path, name: str) -> None:
    if not (probed := await asyncio.to_thread(storages.probe, name)).ready:
        pytest.skip(f"{name}: {probed.reason}")
    settings = load({**os.environ, **storages.ENVIRONMENT, "SANDLOT_DATA_DIR": str(data_dir), "SANDLOT_STORAGE": name})
    closed: dict[str, int] = {}
    async with build(settings) as host:
        ids = [(await host.create(SessionSpec())).session_id for _ in range(3)]
        for session_id in ids:
            async with host.call(CallRequest(session_id, ("python3", "-c", WRITER), detach=True)):
                await sh(host, session_id, "while ! test -e second; do sleep 0.02; done")

        async def turns(session_id: str) -> None:
            while True:
                await sh(host, session_id, f"echo {closed.get(session_id, 0) + 1} > turn")
                closed[session_id] = (await host.turn_complete(TurnRequest(session_id))).number

        busy = [asyncio.create_task(turns(session_id)) for session_id in ids]
        async with asyncio.timeout(60):
            while len(closed) < len(ids):  # noqa: ASYNC110 - each closes turns by itself
                await asyncio.sleep(0.05)
        before = dict(closed)
        data = await backup(host)
        during = dict(closed)
        for one in busy:
            one.cancel()
        for told in await asyncio.gather(*busy, return_exceptions=True):
            assert isinstance(told, asyncio.CancelledError), told
        await clean_up(host)
    again = replace(without(settings, tmp_path), storage="auto")
    async with restored(again, data) as host:
        for session_id in ids:
            assert (await host.get(session_id)).storage == name
            first, second = (await sh(host, session_id, "cat first; echo; cat second")).split()
            assert int(first) - int(second) in (0, 1)
            found = await host.turns(session_id)
            assert before[session_id] <= len(found) <= during[session_id]
            assert [turn.number for turn in found] == [*range(1, len(found) + 1)]
            (fork,) = await host.fork(ForkRequest(session_id, found[-1].snapshot))
            assert int(await sh(host, fork.session_id, "cat turn")) == len(found)


async def test_everything_comes_back(settings: Settings, tmp_path: Path) -> None:
    """Files of every kind, history, states, times, requests, events, templates with names, volumes, keys."""
    root = tmp_path / "rootfs"
    root.mkdir()
    async with build(settings) as host:
        for folder in ("bin", "etc"):
            (root / folder).mkdir()
        shutil.copy(shutil.which("busybox") or "/bin/true", root / "bin" / "tool")
        (root / "etc" / "mark").write_text("of a template\n")
        async with host.make_template(TemplateImport(str(root), "mine:v1")) as steps:
            _ = [step async for step in steps]
        digest = (await host.get_template("mine:v1")).digest
        await host.create_volume(VolumeSpec("shelf", shared=True))
        spec = SessionSpec(
            session_id="whole",
            labels={"a": "b"},
            envs={"X": "y"},
            request_id="asked",
            timeout_s=4000,
            mounts=(Mount("shelf", "/shelf"),),
        )
        made = await host.create(spec)
        await script(host, "whole", SPECIAL)
        await sh(host, "whole", "echo on the shelf > /shelf/note; echo 1 > n")
        turn = await host.turn_complete(TurnRequest("whole", request_id="turn-asked"))
        await sh(host, "whole", "echo 2 > n")
        await host.create(SessionSpec(session_id="resting"))
        await host.pause(PauseRequest("resting"))
        (settings.data / "keys.json").write_text('{"keys": [], "limits": {}}')
        files, told = await look(host, "whole"), await history(host, "whole")
        async with host.events(EventFilter()) as events:
            before = [event async for event in events]
        data = await backup(host)
        await clean_up(host)
    again = without(settings, tmp_path)
    done = await restore(again, data)
    assert (set(done.sessions), done.templates, done.volumes) == ({"whole", "resting"}, (digest,), ("shelf",))
    assert (done.has_keys, done.left_out) == (True, {})
    assert (again.data / "keys.json").stat().st_mode & 0o777 == 0o600
    async with build(again) as host:
        assert await look(host, "whole") == files
        assert await history(host, "whole") == told
        info = await host.get("whole")
        assert (info.labels, info.created) == ({"a": "b"}, made.created)
        assert abs(info.expires - made.expires) < 600
        assert (await host.get("resting")).state is SessionState.PAUSED
        assert (await host.create(spec)).session_id == "whole"  # the same request: it was done
        assert (await host.turn_complete(TurnRequest("whole", request_id="turn-asked"))).number == turn.number
        assert await sh(host, "whole", "cat /shelf/note; echo $X") == "on the shelf\ny\n"
        found = await host.get_template("mine:v1")
        assert (found.digest, found.names) == (digest, ("mine:v1",))
        async with host.events(EventFilter()) as events:
            after = [event async for event in events]
        assert after[: len(before)] == before
        assert after[len(before)].kind is EventKind.GAP
        await clean_up(host)


async def test_one_backup_at_a_time_and_leaving_it_leaves_nothing(settings: Settings) -> None:
    async with build(settings) as host:
        await host.create(SessionSpec(session_id="one"))
        async with host.backup() as stream:
            assert stream.expected_bytes > 0
            with pytest.raises(Conflict):
                async with host.backup():
                    pass
        assert len(await backup(host)) > 0
        async with asyncio.timeout(30):
            while (await host.examine()).findings:  # noqa: ASYNC110 - points go behind the answer
                await asyncio.sleep(0.1)
        assert not list((settings.data / "run").glob("journal*"))
        await clean_up(host)


# ---- refused -------------------------------------------------------------------------------------------------------


async def test_a_data_directory_with_something_in_it_is_left_alone(settings: Settings, tmp_path: Path) -> None:
    data = await taken(settings)
    with pytest.raises(InvalidState, match="not empty"):
        await restore(settings, data)
    assert (settings.data / "journal.db").is_file()


def shortened(data: bytes) -> bytes:
    return data[: len(data) // 2]


def changed(data: bytes) -> bytes:
    return data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :]


def lengthened(data: bytes) -> bytes:
    return data + b"more"


def with_another_digest(data: bytes) -> bytes:
    plain = gzip.decompress(data)
    at = plain.index(b'"sha256": "') + 11
    return gzip.compress(plain[:at] + (b"0" if plain[at : at + 1] != b"0" else b"1") + plain[at + 1 :])


def of_a_session(data: bytes) -> bytes:
    del data
    writer = ArchiveWriter()
    return b"".join([*writer.document("manifest.json", {"format": "sandlot session", "version": 1}), *writer.end()])


def with_other_words(change: Callable[[dict[str, Any]], None]) -> Callable[[bytes], bytes]:
    def rewrite(data: bytes) -> bytes:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r|gz") as archive:
            file = archive.extractfile(archive.next() or tarfile.TarInfo())
            assert file is not None
            told = json.load(file)
        change(told)
        writer = ArchiveWriter()
        return b"".join([*writer.document("manifest.json", told), *writer.end()])

    return rewrite


def _outside(told: dict[str, Any]) -> None:
    told["volumes"] = [{"section": "volumes/0001", "name": "../../out", "shared": True, "created": 1.0}]


def _elsewhere(told: dict[str, Any]) -> None:
    told["sessions"][0]["section"] = "../sessions/0001"


def _twice(told: dict[str, Any]) -> None:
    told["sessions"] *= 2


def _newer(told: dict[str, Any]) -> None:
    told["version"] = 99


def _never(told: dict[str, Any]) -> None:
    told["sessions"][0]["expires"] = float("nan")


def _digest(told: dict[str, Any]) -> None:
    record = {"digest": "sha256:../../../x", "source": "", "created": 0, "size_bytes": 0, "entries": 0, "format": 1}
    text = json.dumps(record | {"entrypoint": [], "command": []})
    told["templates"] = [{"section": "templates/0001", "record": text, "names": []}]


BROKEN = [shortened, changed, lengthened, with_another_digest, of_a_session]
HOSTILE = [_outside, _elsewhere, _twice, _newer, _never, _digest]


async def test_what_is_no_whole_backup_is_refused_and_leaves_nothing(settings: Settings, tmp_path: Path) -> None:
    data, again = await taken(settings), without(settings, tmp_path)
    for broken in (*BROKEN, *map(with_other_words, HOSTILE)):
        with pytest.raises(InvalidArgument):
            await restore(again, broken(data))
        assert is_empty(again.data), broken
    async with restored(again, data) as host:
        assert await sh(host, "one", "cat kept") == "kept\n"


def journal_with(data: bytes, change: Callable[[Path], object], folder: Path) -> bytes:
    """The same backup with another journal; its digest is right."""
    plain = gzip.decompress(data)
    with tarfile.open(fileobj=io.BytesIO(plain)) as archive:
        member = archive.getmember("state/root/journal.db")
        path = folder / "other.db"
        path.write_bytes(plain[member.offset_data : member.offset_data + member.size])
        change(path)
        manifest = archive.extractfile("manifest.json")
        assert manifest is not None
        told = json.load(manifest)
    content = path.read_bytes()
    size = len(content)
    file = Entry("/journal.db", Kind.FILE, 0o600, size=size, extents=((0, size),), content=iter([content]))
    entries = [Entry("/", Kind.DIRECTORY, 0o700), file]
    writer = ArchiveWriter()
    told["sessions"] = []
    parts = [*writer.document("manifest.json", told), *writer.section("state", entries), *writer.end()]
    return b"".join(parts)


def _sql(text: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        with sqlite3.connect(path) as db:
            db.executescript(text)
        db.close()

    return change


def _torn(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[4096:8192] = os.urandom(4096)
    path.write_bytes(content)


JOURNALS: list[Callable[[Path], object]] = [
    _torn,
    lambda path: path.write_bytes(b"no journal at all"),
    _sql("DROP TABLE events; CREATE VIEW events AS SELECT 1 number, 1 at, '' session_id, '' kind, '' detail"),
    _sql("UPDATE sessions SET spec = '['"),
    _sql("UPDATE sessions SET request_id = '../x'"),
    _sql("INSERT INTO events VALUES (99, 1, 'x', 'no kind', '')"),
    _sql("INSERT INTO answers VALUES ('one', 'no verb', 'x', 'y')"),
    _sql("UPDATE sessions SET created = 'soon'"),
]


async def test_a_hostile_journal_is_refused(settings: Settings, tmp_path: Path) -> None:
    data, again = await taken(settings), without(settings, tmp_path)
    for change in JOURNALS:
        with pytest.raises(InvalidArgument):
            await restore(again, journal_with(data, change, tmp_path))
        assert is_empty(again.data)
    assert (await restore(again, journal_with(data, lambda _path: None, tmp_path))).sessions == ()


async def test_another_build_of_a_template_is_taken_when_that_is_said(settings: Settings, tmp_path: Path) -> None:
    data, again = await taken(settings), without(settings, tmp_path)
    real = store.fingerprint()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "fingerprint", lambda: "0" * len(real))  # a machine with other packages
        (again.data / "templates").unlink()
        (again.data / "templates").mkdir()
        (again.data / "templates" / f"builtin-{'0' * len(real)}").symlink_to(
            (settings.data / "templates").resolve() / f"builtin-{real}"
        )
        with pytest.raises(TemplateNotFound, match="built-in"):
            await restore(again, data)
        assert is_empty(again.data)
        async with restored(again, data, templates_here=True) as host:
            assert await sh(host, "one", "cat kept") == "kept\n"


# ---- interrupted ---------------------------------------------------------------------------------------------------


def test_a_restore_that_was_killed_is_told_and_can_be_had_again(sandlot: Program, tmp_path: Path) -> None:
    sandlot("create", "--id", "one")
    file, data = tmp_path / "host.backup", tmp_path / "again"
    assert sandlot.json("backup", str(file))["sessions"] == 1
    data.mkdir()
    (data / "templates").symlink_to((sandlot.data / "templates").resolve())
    again = Program(data)
    content = file.read_bytes()
    with subprocess.Popen(again.words("restore", "-"), stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as half:
        assert half.stdin is not None
        half.stdin.write(content[:-20])  # its end does not come
        half.stdin.flush()
        give_up = time.monotonic() + 60
        while not list((data / "volumes").glob("*")) and time.monotonic() < give_up:
            time.sleep(0.02)
        half.kill()
    ran = again("ls")
    assert (ran.returncode, "did not finish" in ran.stderr.decode()) == (125, True), ran
    told = again.json("restore", str(file))
    assert told["sessions"] == ["one"]
    assert again.ids() == ["one"]
    ran = again("restore", str(file))
    assert ran.returncode == 125
    assert "not empty" in ran.stderr.decode()
    again("kill", "--all", "--yes")
    shutil.rmtree(data, ignore_errors=True)


@pytest.fixture
def sandlot(data_dir: Path) -> Iterator[Program]:
    program = Program(data_dir)
    yield program
    program("kill", "--all", "--yes")
