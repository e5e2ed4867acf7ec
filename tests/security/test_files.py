"""The host's hands in a session's files: whatever a session puts there, they touch nothing outside of it."""

import os
import secrets
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from sandlot.model import (
    CallRequest,
    FileConflict,
    FileInfo,
    FileKind,
    FileNotFound,
    FileRead,
    FileWrite,
    InvalidArgument,
    PermissionDenied,
    SandlotError,
)
from tests.conftest import run
from tests.security.door import NEW, SIZE_BYTES, VERBS, Door, Sentinel, litter, outside
from tests.security.stage import Stage

pytestmark = pytest.mark.root

SOON_S = 3.0
ON_LINKS = {"stat of a link", "rename", "rename onto", "remove", "remove recursively"}  # never follow the last one
KERNELS_OWN = ["/proc", "/proc/1", "/proc/self/status", "/proc/sys/vm", "/dev", "/dev/null", "/dev/shm/x", "/dev/pts"]


@pytest.fixture(scope="module")
def door(stage: Stage) -> Door:
    return Door(stage, stage.create())


@pytest.fixture
def place(door: Door) -> str:
    """A directory of the session's user, new for every test."""
    path = f"/workspace/{secrets.token_hex(6)}"
    door.shell(f"mkdir {path}")
    return path


@pytest.fixture
def sentinel() -> Iterator[Sentinel]:
    with outside("x") as sentinel:
        yield sentinel


def attempt(door: Door, verb: str, path: str) -> object:
    """What a verb answers; the error when it is one of ours. Any other is a failure of the test."""
    try:
        return VERBS[verb](door, path)
    except SandlotError as error:
        return error


# ---- links -----------------------------------------------------------------------------------------------------

# A script that makes a link, and the path that leads through it. %host% is a directory of the host, %fd% a descriptor
# of the engine that has it open.
LINKS: dict[str, tuple[str, str]] = {
    "absolute": ("ln -s %host%/f x", "x"),
    "relative": ("ln -s ../../../../../../../../../..%host%/f x", "x"),
    "directory": ("ln -s %host% d", "d/f"),
    "directory, relative": ("ln -s ../../../../../../../../..%host% d", "d/sub/f"),
    "directory itself": ("ln -s %host% x", "x"),
    "directory with a slash": ("ln -s %host%/sub x", "x/"),
    "dots in the path": ("mkdir d", "d/../../../../../../../..%host%/f"),
    "the path itself": ("true", "%host%/f"),
    "chain": ("ln -s %host%/f a; ln -s a b; ln -s b c; ln -s ./c x", "x"),
    "chain of directories": ("ln -s %host% a; ln -s a b; ln -s b/sub c", "c/f"),
    "longest chain": (
        "ln -s %host%/f l0; i=0; while [ $i -lt 45 ]; do ln -s l$i l$((i+1)); i=$((i+1)); done",
        "l44",
    ),
    "root of a process": ("ln -s /proc/self/root%host%/f x", "x"),
    "root of pid 1": ("ln -s /proc/1/root%host%/f x", "x"),
    "root of pid 1, directory": ("ln -s /proc/1/root d", "d%host%/f"),
    "root of a thread": ("ln -s /proc/thread-self/root%host% d", "d/f"),
    "working directory": ("ln -s /proc/self/cwd x", "x"),
    "descriptor": ("ln -s /proc/self/fd/%fd% x", "x"),
    "descriptor, directory": ("ln -s /proc/self/fd/%fd% d", "d/f"),
    "descriptor by /dev": ("ln -s /dev/fd/%fd% x", "x"),
    "descriptor without a link": ("true", "/proc/self/fd/%fd%/f"),
    "program of a process": ("ln -s /proc/self/exe x", "x"),
}


@pytest.mark.parametrize("user", ["user", "root"])
@pytest.mark.parametrize("verb", VERBS)
def test_no_link_leads_out(door: Door, place: str, sentinel: Sentinel, verb: str, user: str) -> None:
    handle = os.open(sentinel.folder, os.O_RDONLY)
    try:
        for name, (script, path) in LINKS.items():
            folder = f"{place}/{secrets.token_hex(4)}"
            words = {"%host%": str(sentinel.folder), "%fd%": str(handle)}
            for word, value in words.items():
                script, path = script.replace(word, value), path.replace(word, value)
            door.shell(f"mkdir {folder} && cd {folder} && {script}")
            answer = attempt(door.as_user(user), verb, os.path.join(folder, path))  # noqa: PTH118 - may be absolute
            assert not sentinel.is_told_by(answer), name
            assert sentinel.is_untouched(), name
    finally:
        os.close(handle)


@pytest.mark.parametrize("verb", VERBS)
def test_links_in_circles_end(door: Door, place: str, verb: str) -> None:
    door.shell(f"cd {place}; ln -s y x; ln -s x y; ln -s . here")
    began = time.monotonic()
    answer = attempt(door, verb, f"{place}/x")
    deep = attempt(door, verb, f"{place}/x/below")
    assert time.monotonic() - began < SOON_S
    if verb == "rename without overwriting":
        assert isinstance(answer, FileConflict)
    elif verb not in ON_LINKS:
        assert isinstance(answer, FileConflict)
        assert "links" in str(answer)
    assert isinstance(deep, FileConflict | FileNotFound)  # those that never follow have moved or removed the link
    if verb.startswith("list"):
        assert isinstance(attempt(door, verb, f"{place}{'/here' * 30}"), list)
        assert len(door.list(place, depth=9)) == 3


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("path", KERNELS_OWN)
def test_what_is_no_file_of_the_session_is_refused(door: Door, verb: str, path: str) -> None:
    answer = attempt(door.as_user("root"), verb, path)
    assert door.shell("test -d /proc/1 && test -c /dev/null && test -d /dev/shm && echo there", "root") == "there\n"
    assert isinstance(answer, PermissionDenied)
    assert "leads out" in str(answer)
    assert "a command" in answer.next_step


def test_links_inside_lead_where_they_lead_commands(door: Door, place: str) -> None:
    door.shell(
        f"cd {place}; mkdir -p a/b; echo one >a/b/file; ln -s {place}/a/b abs; ln -s a/b rel; ln -s ../b/file a/b/f"
    )
    for path in ("abs/file", "rel/file", "rel/f", "abs/../b/file"):
        assert door.read(f"{place}/{path}") == b"one\n"
    door.write(f"{place}/rel/f", b"two\n")
    assert door.shell(f"cat {place}/a/b/file; readlink {place}/a/b/f") == "two\n../b/file\n"
    door.shell(f"ln -s {place}/a/new/deep {place}/dangling")
    assert door.write(f"{place}/dangling").path == f"{place}/a/new/deep"
    assert door.read(f"{place}/dangling") == NEW
    door.remove(f"{place}/rel")
    assert door.shell(f"ls {place}/a/b") == "f\nfile\n"


# ---- things that are not files ---------------------------------------------------------------------------------

NOT_FILES = {
    "pipe": "mkfifo x",
    "socket": "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"x\")'",
}


@pytest.mark.parametrize("kind", NOT_FILES)
def test_pipes_and_sockets_are_told_of_and_never_opened(door: Door, place: str, kind: str) -> None:
    """Opening a pipe waits for its other end: the host would hang in it."""
    door.shell(f"cd {place}; {NOT_FILES[kind]}")
    began = time.monotonic()
    for verb in ("read", "write", "list", "make"):
        assert isinstance(attempt(door, verb, f"{place}/x"), FileConflict), verb
    assert door.stat(f"{place}/x").kind is FileKind.OTHER
    assert [info.kind for info in door.list(place)] == [FileKind.OTHER]
    assert door.rename(f"{place}/x", f"{place}/y").kind is FileKind.OTHER
    door.remove(f"{place}/y")
    assert door.list(place) == []
    assert time.monotonic() - began < SOON_S


def test_a_pipe_with_a_reader_gets_nothing(door: Door, place: str) -> None:
    reading = door.stage.begin_script(
        door.session, f"import os; os.mkfifo('{place}/x'); print(open('{place}/x').read())", "user"
    )
    door.shell(f"while ! test -p {place}/x; do sleep 0.01; done")
    with pytest.raises(FileConflict, match="pipe"):
        door.write(f"{place}/x")
    door.shell(f": >{place}/x")
    assert reading.result().stdout == b"\n"


def test_devices_cannot_be_made_and_are_not_opened(door: Door, place: str) -> None:
    assert door.shell(f"mknod {place}/x c 1 3 2>&1 || echo refused", "root").endswith("refused\n")
    door.shell(f"ln -s /dev/zero {place}/zero; ln -s /dev/tty {place}/tty")
    for name in ("zero", "tty"):
        with pytest.raises(PermissionDenied, match="leads out"):
            door.read(f"{place}/{name}")
        with pytest.raises(PermissionDenied, match="leads out"):
            door.write(f"{place}/{name}")


def test_a_lease_does_not_hold_the_host(door: Door, place: str) -> None:
    """A program that holds a lease is asked to give it up, and may take 45 seconds for the answer."""
    script = f"""
import fcntl, os, signal, time
signal.signal(signal.SIGIO, signal.SIG_IGN)
file = os.open("{place}/x", os.O_RDWR | os.O_CREAT)
os.write(file, b"held")
fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
open("{place}/held", "w").close()
while not os.path.exists("{place}/stop"): time.sleep(0.02)
"""
    holding = door.stage.begin_script(door.session, script, "user")
    door.shell(f"while ! test -e {place}/held; do sleep 0.01; done; ln {place}/x {place}/y")
    began = time.monotonic()
    assert isinstance(attempt(door, "read", f"{place}/x"), FileConflict)
    assert door.stat(f"{place}/x").size_bytes == 4
    assert len(door.list(place)) == 3
    door.write(f"{place}/x")
    assert door.read(f"{place}/x") == NEW
    door.rename(f"{place}/y", f"{place}/z")
    door.remove(f"{place}/z")
    assert time.monotonic() - began < SOON_S
    door.shell(f"touch {place}/stop")
    assert holding.result().exit_code == 0


def test_a_lease_does_not_hold_a_write_in_place(door: Door, place: str) -> None:
    """Where the directory may not be written, the file itself must be opened."""
    script = f"""
import fcntl, os, signal, time
signal.signal(signal.SIGIO, signal.SIG_IGN)
file = os.open("{place}/d/x", os.O_RDONLY)
fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
open("{place}/held", "w").close()
while not os.path.exists("{place}/stop"): time.sleep(0.02)
"""
    door.shell(f"mkdir {place}/d; echo old >{place}/d/x; chown root {place}/d; chown user {place}/d/x", "root")
    holding = door.stage.begin_script(door.session, script, "user")
    door.shell(f"while ! test -e {place}/held; do sleep 0.01; done")
    began = time.monotonic()
    assert isinstance(attempt(door, "write", f"{place}/d/x"), FileConflict)
    assert time.monotonic() - began < SOON_S
    door.shell(f"touch {place}/stop")
    holding.result()
    assert door.read(f"{place}/d/x") == b"old\n"


# ---- names and sizes -------------------------------------------------------------------------------------------

NAMES = {
    "not UTF-8": os.fsdecode(b"\xff\xfe\x80"),
    "line": "a\nb",
    "escape": "\x1b[31mred\x07",
    "spaces": "  ",
    "option": "-rf",
    "dots": "...",
    "quotes": "'\"$(id)`",
    "letters": "żółw",
    "longest": "n" * 255,
    "longest in bytes": "ł" * 127 + "x",
}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES.keys())
def test_any_name_can_be_used(door: Door, place: str, name: str) -> None:
    path = f"{place}/{name}"
    assert door.write(path, b"hello").path == path
    assert door.read(path) == b"hello"
    assert [info.name for info in door.list(place)] == [name]
    assert door.stat(path) == door.list(place)[0]
    assert door.shell(f"find {place} -type f -exec cat {{}} +") == "hello"
    assert door.rename(path, f"{place}/x").name == "x"
    door.rename(f"{place}/x", path)
    door.remove(path)
    assert door.make(path)
    assert door.write(f"{path}/x").path == f"{path}/x"
    door.remove(path, recursive=True)
    assert door.list(place) == []


@pytest.mark.parametrize("verb", VERBS)
def test_a_name_that_is_too_long_is_refused(door: Door, place: str, verb: str) -> None:
    answer = attempt(door, verb, f"{place}/{'n' * 256}")
    assert isinstance(answer, InvalidArgument)
    assert "too long" in str(answer)
    assert len(str(answer)) < 1000


def test_errors_can_be_printed_whatever_a_file_is_called(door: Door, place: str) -> None:
    """A session could write to the terminal of whoever reads the error."""
    with pytest.raises(FileNotFound) as caught:
        door.stat(f"{place}/\x1b[2J\udcff\n")
    assert str(caught.value).isprintable()
    assert str(caught.value).encode()
    assert caught.value.context["path"] == f"{place}/\x1b[2J\udcff\n"


def long_path(place: str, length: int) -> str:
    path = place + "/" + "d" * ((length - len(place)) % 250 + 3)
    while len(path) < length:
        path += "/" + "d" * (min(250, length - len(path)) - 1)
    assert len(path) == length
    return path


def test_the_longest_path(door: Door, place: str) -> None:
    path = long_path(place, 4095)
    assert door.write(path, b"deep").path == path
    assert door.read(path) == b"deep"
    assert door.stat(path).size_bytes == 4
    assert door.list(place, depth=100)[-1].path == path
    folder = path.rpartition("/")[0]
    assert [info.path for info in door.list(folder)] == [path]
    assert door.make(path[:-1] + "e")
    door.rename(path[:-1] + "e", path[:-1] + "f")
    door.remove(path[:-1] + "f")
    with pytest.raises(InvalidArgument) as caught:
        door.stat(path + "x")
    assert caught.value.context["limit"] == "path_bytes"
    door.remove(place, recursive=True)
    # Below the workspace it is longer than the kernel takes.
    with pytest.raises(InvalidArgument, match="too long"):
        door.stat(path[1:])


def test_what_cannot_be_named_shows_as_itself(door: Door, place: str) -> None:
    script = "import os\nfor i in range(20):\n    os.mkdir('d' * 250); os.chdir('d' * 250)"
    door.shell(f'cd {place}; python3 -c "{script}"')
    assert len(door.list(place, depth=30)) == 17  # 4096 bytes, below the directory that was asked for
    door.remove(place, recursive=True)
    with pytest.raises(FileNotFound):
        door.stat(place)


def test_a_terabyte_of_nothing(door: Door, place: str) -> None:
    door.shell(
        f"truncate -s 1T {place}/x; printf end | dd of={place}/x bs=1 seek={(1 << 40) - 3} conv=notrunc status=none"
    )
    assert door.stat(f"{place}/x").size_bytes == 1 << 40
    assert door.read(f"{place}/x", offset=(1 << 40) - 6) == b"\0\0\0end"
    assert door.read(f"{place}/x", offset=1 << 39, length=10) == bytes(10)
    assert door.read(f"{place}/x", offset=1 << 41) == b""
    assert door.read(f"{place}/x", offset=(1 << 63) - 1) == b""

    async def look_into() -> tuple[int, float]:
        began = time.monotonic()
        async with door.host.read_file(FileRead(door.session, f"{place}/x")) as stream:
            count = 0
            async for piece in stream:
                count += len(piece)
                if count >= SIZE_BYTES:
                    break
        return count, time.monotonic() - began

    count, took_s = door.stage.wait(look_into())
    assert SIZE_BYTES <= count <= 2 << 20
    assert took_s < SOON_S
    door.remove(f"{place}/x")


# ---- what changes under the host's hands -----------------------------------------------------------------------


def write_while(door: Door, path: str, script: str) -> FileInfo:
    """Write a file, and run a command in the session in the middle of it."""

    async def content() -> AsyncIterator[bytes]:
        yield b"first"
        yield b"second"
        ran = await run(door.host, CallRequest(door.session, ("sh", "-c", script)))
        assert ran.exit_code == 0, ran
        yield b"third"

    return door.stage.wait(door.host.write_file(FileWrite(door.session, path), content()))


def test_a_file_that_becomes_a_directory_while_it_is_written(door: Door, place: str) -> None:
    door.write(f"{place}/x", b"old")
    with pytest.raises(FileConflict):
        write_while(door, f"{place}/x", f"rm {place}/x; mkdir {place}/x; touch {place}/x/kept")
    assert [info.name for info in door.list(place, depth=2)] == ["x", "kept"]
    assert litter(door) == ""


def test_a_directory_that_goes_away_while_it_is_written_into(door: Door, place: str) -> None:
    with pytest.raises(FileNotFound):
        write_while(door, f"{place}/d/x", f"rm -r {place}/d")
    assert door.list(place) == []


def test_a_link_that_appears_while_a_file_is_written_is_replaced(door: Door, place: str, sentinel: Sentinel) -> None:
    for old in (b"old", b""):
        path = f"{place}/x-{len(old)}"
        if old:
            door.write(path, old)
        told = write_while(door, path, f"ln -sf {sentinel.folder}/f {path}")
        assert (told.kind, door.stat(path, follow=False).kind) == (FileKind.FILE, FileKind.FILE)
        assert door.read(path) == b"firstsecondthird"
    assert litter(door) == ""


def test_a_mount_of_the_session_stays_when_its_directory_is_reached_by_another_way(door: Door, place: str) -> None:
    """From outside of the session's namespace the kernel would let the directory go, and the mount with it."""
    root = door.as_user("root")
    door.shell(f"ln -s / {place}/top; mkdir {place}/empty", "root")
    for path in (f"{place}/top/proc", f"{place}/top/dev", f"{place}/../../proc"):
        for answer in (
            attempt(root, "remove", path),
            attempt(root, "remove recursively", path),
            attempt(root, "rename", path),
        ):
            assert isinstance(answer, PermissionDenied)
        with pytest.raises(PermissionDenied):
            root.rename(f"{place}/empty", path)
    assert door.shell("cat /proc/1/comm && test -c /dev/null && mount | grep -c '^proc on /proc '", "root")
