"""The system calls that Python does not have, against the kernel itself."""

import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sandlot.host import kernel
from sandlot.host.kernel import BENEATH, IN_ROOT, NO_MAGICLINKS, NO_SYMLINKS, NO_XDEV, Identity, act_as, serve_sessions

FIRST = 400_000_000  # nobody's, on any machine
SETGID, SETUID = 1 << 6, 1 << 7
FILE_POWERS = 1 << 0 | 1 << 1 | 1 << 3 | 1 << 4


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "outside").write_text("outside")
    top = tmp_path / "top"
    (top / "a" / "b").mkdir(parents=True)
    (top / "a" / "file").write_text("inside")
    (top / "up").symlink_to("../outside")
    (top / "absolute").symlink_to("/a/file")
    (top / "relative").symlink_to("a/file")
    (top / "magic").symlink_to("/proc/self/exe")
    fd = os.open(top, os.O_PATH | os.O_DIRECTORY)
    yield fd
    os.close(fd)


def content(folder: int, path: str, resolve: int) -> str:
    fd = kernel.open_inside(folder, path, os.O_RDONLY, resolve)
    try:
        assert not os.get_inheritable(fd)
        return os.pread(fd, 100, 0).decode()
    finally:
        os.close(fd)


def refusal(folder: int, path: str, resolve: int, flags: int = os.O_RDONLY) -> int:
    with pytest.raises(OSError, match=r".") as caught:
        kernel.open_inside(folder, path, flags, resolve)
    assert caught.value.filename == path
    return caught.value.errno or 0


# ---- opening ---------------------------------------------------------------------------------------------------


def test_beneath_a_directory(folder: int) -> None:
    assert content(folder, "a/file", BENEATH) == "inside"
    assert content(folder, "a/b/../file", BENEATH) == "inside"
    assert content(folder, "relative", BENEATH) == "inside"
    for path in ("../outside", "a/../../outside", "up", "absolute", "/a/file", "/", ".."):
        assert refusal(folder, path, BENEATH) == errno.EXDEV


def test_as_in_a_root(folder: int) -> None:
    for path in ("a/file", "/a/file", "absolute", "/../../a/file", "relative", "/a/b/../../../../a/file"):
        assert content(folder, path, IN_ROOT) == "inside"
    for path in ("up", "../outside", "/outside"):
        assert refusal(folder, path, IN_ROOT) == errno.ENOENT


def test_links_can_be_refused(folder: int) -> None:
    assert refusal(folder, "relative", BENEATH | NO_SYMLINKS) == errno.ELOOP
    assert content(folder, "a/file", BENEATH | NO_SYMLINKS) == "inside"


def test_magic_links_and_other_filesystems_can_be_refused() -> None:
    root = os.open("/", os.O_PATH | os.O_DIRECTORY)
    try:
        assert refusal(root, "/proc/self/exe", IN_ROOT | NO_MAGICLINKS) == errno.ELOOP
        assert refusal(root, "/proc", IN_ROOT | NO_XDEV) == errno.EXDEV
        assert refusal(root, "/proc/self/status", IN_ROOT | NO_XDEV) == errno.EXDEV
    finally:
        os.close(root)


def test_errors_are_those_of_the_kernel(folder: int) -> None:
    assert refusal(folder, "missing", BENEATH) == errno.ENOENT
    assert refusal(folder, "a/file/x", BENEATH) == errno.ENOTDIR
    assert refusal(folder, "a/file", BENEATH, os.O_RDONLY | os.O_DIRECTORY) == errno.ENOTDIR
    assert refusal(folder, "x" * 300, BENEATH) == errno.ENAMETOOLONG
    with pytest.raises(FileNotFoundError):
        kernel.open_inside(folder, "missing", os.O_RDONLY, BENEATH)
    with pytest.raises(OSError, match="Bad file descriptor"):
        kernel.open_inside(-1, "x", os.O_RDONLY, BENEATH)


def test_names_that_are_not_text(folder: int, tmp_path: Path) -> None:
    name = b"\xff\n\x80"
    (tmp_path / "top" / os.fsdecode(name)).write_text("odd")
    assert content(folder, os.fsdecode(name), BENEATH) == "odd"


def test_renames_elsewhere_do_not_disturb(folder: int, tmp_path: Path) -> None:
    """The kernel gives up a path with `..` in it when anything is renamed meanwhile, and wants to be asked again."""
    stop = threading.Event()

    def rename() -> None:
        one, other = tmp_path / "one", tmp_path / "other"
        one.touch()
        while not stop.is_set():
            for _ in range(100):
                one.rename(other)
                other.rename(one)

    renaming = threading.Thread(target=rename)
    renaming.start()
    try:
        for _ in range(3000):
            os.close(kernel.open_inside(folder, "a/b/../b/../b/../file", os.O_PATH, BENEATH))
    finally:
        stop.set()
        renaming.join()


def test_a_rename_that_replaces_nothing(folder: int, tmp_path: Path) -> None:
    top = tmp_path / "top"
    odd = os.fsdecode(b"\xfe")
    below = os.open(top / "a", os.O_PATH | os.O_DIRECTORY)
    try:
        kernel.rename_without_replacing(below, "file", folder, odd)
        assert (top / odd).read_text() == "inside"
        (top / "a" / "file").write_text("new")
        with pytest.raises(FileExistsError):
            kernel.rename_without_replacing(below, "file", folder, odd)
        with pytest.raises(FileExistsError):
            kernel.rename_without_replacing(below, "file", folder, "absolute")
        with pytest.raises(FileNotFoundError):
            kernel.rename_without_replacing(below, "missing", folder, "x")
    finally:
        os.close(below)
    assert ((top / odd).read_text(), (top / "a" / "file").read_text()) == ("inside", "new")


# ---- acting as someone -----------------------------------------------------------------------------------------


def status() -> dict[str, list[str]]:
    lines = Path(f"/proc/self/task/{threading.get_native_id()}/status").read_text().splitlines()
    return {name: value.split() for name, _colon, value in (line.partition(":") for line in lines)}


def in_thread(work: Callable[[], None]) -> None:
    """In a thread that nobody uses afterwards; what fails there fails here."""
    failures: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised again below
            failures.append(error)

    thread = threading.Thread(target=guarded)
    thread.start()
    thread.join()
    for failure in failures:
        raise failure


def check(identity: Identity) -> None:
    found = status()
    assert int(found["Uid"][3]) == identity.uid
    assert int(found["Gid"][3]) == identity.gid
    assert tuple(map(int, found["Groups"])) == tuple(sorted(identity.groups))
    assert int(found["CapEff"][0], 16) == SETGID | SETUID | (FILE_POWERS if identity.powerful else 0)


@pytest.fixture
def common(tmp_path: Path) -> Iterator[int]:
    """A directory of all, by descriptor: those above it are closed to others."""
    tmp_path.chmod(0o777)
    fd = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    yield fd
    os.close(fd)


@pytest.mark.root
def test_a_thread_becomes_a_user_and_no_other_does(common: int) -> None:
    before = status()
    people = [
        Identity(FIRST, FIRST, (FIRST,), powerful=True),
        Identity(FIRST + 1000, FIRST + 50, (FIRST + 50, FIRST + 27)),
        Identity(FIRST + 1000, FIRST + 50, ()),
        Identity(FIRST + 65535, FIRST + 65535, (FIRST + 65535,)),
        Identity(FIRST, FIRST, (FIRST,), powerful=True),
    ]

    def work() -> None:
        serve_sessions()
        for number, identity in enumerate(people):
            act_as(identity)
            check(identity)
            act_as(identity)
            os.mkdir(str(number), dir_fd=common)
            made = os.stat(str(number), dir_fd=common)
            assert (made.st_uid, made.st_gid) == (identity.uid, identity.gid)

    in_thread(work)
    after = status()
    for name in ("Uid", "Gid", "Groups", "CapEff", "CapPrm", "Umask"):
        assert after[name] == before[name]


@pytest.mark.root
def test_rights_are_those_of_the_user(common: int, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x")
    secret.chmod(0o640)
    os.chown(secret, 0, FIRST + 27)

    def open_it(flags: int) -> None:
        os.close(os.open("secret", flags, dir_fd=common))

    def work() -> None:
        serve_sessions()
        act_as(Identity(FIRST + 1000, FIRST + 1000, (FIRST + 1000,)))
        with pytest.raises(PermissionError):
            open_it(os.O_RDONLY)
        act_as(Identity(FIRST + 1000, FIRST + 1000, (FIRST + 1000, FIRST + 27)))
        open_it(os.O_RDONLY)
        with pytest.raises(PermissionError):
            open_it(os.O_RDWR)
        act_as(Identity(FIRST, FIRST, (FIRST,), powerful=True))
        open_it(os.O_RDWR)

    in_thread(work)


@pytest.mark.root
def test_a_thread_that_could_not_become_someone_is_nobody_known() -> None:
    """Half of the change was made. To be who it was before, it must be made so again."""

    def work() -> None:
        serve_sessions()
        good = Identity(FIRST + 1, FIRST + 1, (FIRST + 1,))
        act_as(good)
        with pytest.raises(PermissionError):
            act_as(Identity(-1, FIRST + 7, (FIRST + 7,), powerful=True))
        assert status()["Groups"] == [str(FIRST + 7)]
        act_as(good)
        check(good)
        with pytest.raises(OSError, match="setgroups"):
            act_as(Identity(FIRST, FIRST, tuple(range(70_000))))
        with pytest.raises(PermissionError):
            act_as(None)

    in_thread(work)


@pytest.mark.root
def test_a_thread_that_acted_never_becomes_the_engine_again() -> None:
    def work() -> None:
        serve_sessions()
        act_as(None)
        act_as(Identity(FIRST, FIRST, (FIRST,), powerful=True))
        with pytest.raises(PermissionError):
            act_as(None)
        check(Identity(FIRST, FIRST, (FIRST,), powerful=True))

    in_thread(work)


def test_threads_of_the_engine_are_never_anyone_else() -> None:
    def work() -> None:
        before = status()
        act_as(None)
        with pytest.raises(PermissionError):
            act_as(Identity(FIRST, FIRST))
        assert (status()["Uid"], status()["CapEff"]) == (before["Uid"], before["CapEff"])

    in_thread(work)


def test_a_serving_thread_has_a_umask_of_its_own(tmp_path: Path) -> None:
    before = status()["Umask"]

    def work() -> None:
        serve_sessions()
        (tmp_path / "made").mkdir(0o777)

    in_thread(work)
    assert (tmp_path / "made").stat().st_mode & 0o777 == 0o777
    assert status()["Umask"] == before
