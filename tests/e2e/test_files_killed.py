"""An engine that is killed while it works at files leaves no half of one, and no name of its own."""

import asyncio
import io
import os
import signal
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from sandlot.config.settings import Settings
from sandlot.host import failpoints
from sandlot.host.asides import Asides, Note, hidden_name
from sandlot.host.service import SandboxHostService
from sandlot.model import (
    CallRequest,
    FileAppend,
    FileCopy,
    FileRead,
    FileWrite,
    PauseRequest,
    SessionSpec,
    TreeUpload,
)
from sandlot.wiring.embedded import build
from tests.conftest import clean_up, run

RUNTIMES = [pytest.param("namespaces", marks=pytest.mark.root), "none"]
OLD, NEW = b"old\n", os.urandom(1 << 20) * 3
Work = Callable[[SandboxHostService], Awaitable[object]]


async def pieces(*content: bytes, then: Callable[[], object] | None = None) -> AsyncIterator[bytes]:
    for piece in content:
        yield piece
    if then:
        then()


def in_pieces() -> AsyncIterator[bytes]:
    return pieces(*(NEW[at : at + (1 << 20)] for at in range(0, len(NEW), 1 << 20)))


def archive(**files: bytes) -> bytes:
    told = io.BytesIO()
    with tarfile.open(fileobj=told, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return told.getvalue()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_in(settings: Settings, work: Work, place: str = "", hit: int = 1, *, nameless: bool = True) -> None:
    """Do it in an engine of its own process, which is killed at that place."""
    child = os.fork()
    if child:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        return
    left = hit

    def strike() -> None:
        nonlocal left
        left -= 1
        if not left:
            die()

    async def live() -> None:
        async with build(settings) as host:
            if place:
                failpoints.arm(place, strike)
            await work(host)

    try:
        if not nameless:  # as on a filesystem that has no files without names
            os.O_TMPFILE = os.O_DIRECTORY  # pyright: ignore[reportAttributeAccessIssue] - only of this process
        asyncio.run(live())
    finally:
        os._exit(1)


def with_engine(settings: Settings, work: Work) -> None:
    async def live() -> None:
        async with build(settings) as host:
            await work(host)

    asyncio.run(live())


async def content(host: SandboxHostService, path: str) -> bytes:
    async with host.read_file(FileRead("s", path)) as stream:
        return b"".join([piece async for piece in stream])


async def shell(host: SandboxHostService, script: str, user: str | None = None) -> str:
    ran = await run(host, CallRequest("s", ("sh", "-ec", script), user=user))
    assert ran.exit_code == 0, ran
    return ran.stdout.decode()


def litter(settings: Settings) -> list[str]:
    """Names that are left, wherever volumes are kept."""
    return [path.name for path in (settings.data / "volumes").rglob(".sandlot-*")]


@pytest.fixture(params=RUNTIMES)
def kept(settings: Settings, request: pytest.FixtureRequest) -> Settings:
    """A session `s` with a file `f`, and a directory `d` that has one too."""

    async def make(host: SandboxHostService) -> None:
        await host.create(SessionSpec(session_id="s", runtime=request.param))
        await shell(host, "mkdir d; printf 'old\\n' | tee f d/f >d/g; ln -s nowhere d/l")

    with_engine(settings, make)
    return settings


def look(settings: Settings, *expected: tuple[str, bytes]) -> None:
    """The next engine: before anyone asks for a file nothing is left, and files are whole."""

    async def check(host: SandboxHostService) -> None:
        assert litter(settings) == []
        for path, wanted in expected:
            assert await content(host, path) == wanted, path
        await clean_up(host)

    with_engine(settings, check)


def test_in_the_middle_of_what_is_written(kept: Settings) -> None:
    for path in ("f", "new"):
        for nameless in (True, False):
            die_in(
                kept,
                lambda host, path=path: host.write_file(FileWrite("s", path), pieces(b"1", b"2" * 99_999, then=die)),
                nameless=nameless,
            )
            assert len(litter(kept)) == (not nameless), "this kill proves nothing"
            with_engine(kept, lambda host: host.health())
            assert litter(kept) == []
    die_in(kept, lambda host: host.append_file(FileAppend("s", "d/f"), pieces(b"more\n", b"", then=die)))

    async def check(host: SandboxHostService) -> None:
        assert await shell(host, "ls -A . d") == ".:\nd\nf\n\nd:\nf\ng\nl\n"

    with_engine(kept, check)
    look(kept, ("f", OLD), ("d/f", OLD + b"more\n"))


@pytest.mark.parametrize("place", ["file: has a hidden name", "copy: has a hidden name", "upload: has a hidden name"])
def test_at_the_moment_when_new_takes_the_place_of_old(kept: Settings, place: str) -> None:
    work: dict[str, Work] = {
        "file": lambda host: host.write_file(FileWrite("s", "f"), pieces(NEW)),
        "copy": lambda host: host.copy_file(FileCopy("s", "d", to="e", recursive=True)),
        "upload": lambda host: host.upload_tree(TreeUpload("s", "d"), pieces(archive(a=b"1", f=b"2", g=b"3"))),
    }
    die_in(kept, work[place.partition(":")[0]], place)
    assert len(litter(kept)) == 1, "this kill proves nothing"
    look(kept, ("f", OLD), ("d/f", OLD), ("d/g", OLD))


@pytest.mark.parametrize("nameless", [True, False])
def test_in_the_middle_of_an_upload(kept: Settings, nameless: bool) -> None:
    whole = archive(a=b"1", f=NEW, g=b"3")
    die_in(
        kept,
        lambda host: host.upload_tree(TreeUpload("s", "d"), pieces(whole[: 2 << 20], then=die)),
        nameless=nameless,
    )
    assert len(litter(kept)) == (not nameless), "this kill proves nothing"
    look(kept, ("d/a", b"1"), ("d/f", OLD), ("d/g", OLD))


@pytest.mark.root
@pytest.mark.parametrize("nameless", [True, False])
@pytest.mark.parametrize("rights", ["chown user f; chmod 600 f", "chmod 666 f; chmod 777 ."])
def test_what_was_being_copied_into_a_file_is_copied_whole(settings: Settings, rights: str, nameless: bool) -> None:
    """Its user may write the file, and nothing else in that directory; or may not give a new one to its owner."""

    async def make(host: SandboxHostService) -> None:
        await host.create(SessionSpec(session_id="s", runtime="namespaces"))
        await shell(host, f"mkdir /closed; cd /closed; echo old >f; {rights}", "root")

    with_engine(settings, make)
    write: Work = lambda host: host.write_file(FileWrite("s", "/closed/f"), in_pieces())  # noqa: E731
    die_in(settings, write, "file: half copied", hit=2, nameless=nameless)
    (half,) = (path for path in (settings.data / "volumes").rglob("closed/f") if path.stat().st_size < len(NEW))
    assert half.stat().st_size > 0
    look(settings, ("/closed/f", NEW))


@pytest.mark.root
def test_in_a_session_that_stands_still_it_is_put_right_when_it_goes_on(settings: Settings) -> None:
    async def pause(host: SandboxHostService) -> None:
        await host.create(SessionSpec(session_id="s", runtime="namespaces"))
        await shell(host, "echo old >f")
        await host.pause(PauseRequest("s"))

    with_engine(settings, pause)
    note = Note("s", "user", "/workspace", hidden_name())
    asides = Asides(settings.data / "asides")
    asides.open()
    asides.take(note)
    asides.close()
    (file,) = (settings.data / "volumes").rglob("workspace/f")
    file.with_name(note.name).write_text("left")

    async def go_on(host: SandboxHostService) -> None:
        assert litter(settings) == [note.name]
        await host.resume("s")
        assert litter(settings) == []
        await clean_up(host)

    with_engine(settings, go_on)


def test_notes_that_make_no_sense_remove_nothing(kept: Settings) -> None:
    """A note that was cut off, of a session that is gone, or of a name that is not one of ours."""
    asides = Asides(kept.data / "asides")
    asides.open()
    for note in (Note("s", "", ".", "f"), Note("s", "", ".", "../f"), Note("gone", "", ".", hidden_name())):
        asides.take(note)
    asides.close()
    with (kept.data / "asides").open("r+b") as file:
        file.seek(5 * 16 * 1024)
        file.write(b'{"session_id": "s", "folder"')
        file.seek(6 * 16 * 1024)
        file.write(b'{"session_id": "s", "surprise": 1}\n')
    look(kept, ("f", OLD), ("d/f", OLD))
