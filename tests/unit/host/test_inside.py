"""Files below one directory, as a session would have them: seen as a root, and as a part of the machine."""

import errno
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandlot.contracts.runtime import Tree
from sandlot.host import inside, removal
from sandlot.host.inside import Inside, WrongKind
from sandlot.model import FileInfo, FileKind


class Place:
    """A tree on disk, and the same as `Inside` sees it."""

    def __init__(self, folder: Path, top: str) -> None:
        self.folder = folder
        self.top = top  # how the session calls it
        fd = os.open(folder, os.O_PATH | os.O_DIRECTORY)
        self.inside = Inside(Tree(fd, top or "/", None), top or "/")

    def path(self, below: str) -> str:
        return f"{self.top}/{below}"

    def list(self, below: str = "", depth: int = 1) -> list[FileInfo]:
        return [info for batch in inside.list_files(self.inside, self.path(below), depth) for info in batch]

    def names(self, below: str = "", depth: int = 1) -> set[str]:
        return {info.path.removeprefix(self.top + "/") for info in self.list(below, depth)}

    def remove(self, below: str, *, recursive: bool = True) -> None:
        for _step in inside.remove(self.inside, self.path(below), recursive=recursive):
            pass


@pytest.fixture(params=["root", "part"])
def place(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Place]:
    folder = tmp_path / "tree"
    folder.mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("secret")
    place = Place(folder, "" if request.param == "root" else str(folder))
    stood, before = Path.cwd(), descriptors()
    yield place
    os.chdir(stood)
    assert descriptors() == before
    place.inside.close()
    assert (tmp_path / "outside" / "secret").read_text() == "secret"


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


# ---- looking ---------------------------------------------------------------------------------------------------


def test_what_leads_out_is_not_there(place: Place, tmp_path: Path) -> None:
    (place.folder / "up").symlink_to("../outside/secret")
    (place.folder / "abs").symlink_to(tmp_path / "outside" / "secret")
    (place.folder / "dir").symlink_to(tmp_path / "outside")
    for below in ("up", "abs", "dir/secret", "../outside/secret", "x/../../outside/secret"):
        with pytest.raises(OSError, match=r".") as caught:
            inside.stat_file(place.inside, place.path(below), follow=True)
        assert caught.value.errno in (errno.EXDEV, errno.ENOENT)
    if place.top:
        for path in ("/etc/passwd", str(tmp_path), place.top + "x", str(tmp_path / "outside" / "secret")):
            with pytest.raises(OSError, match="outside of the workspace"):
                inside.stat_file(place.inside, path, follow=True)
    else:
        touch(place.folder, str(tmp_path / "outside" / "secret").lstrip("/"))
        assert inside.stat_file(place.inside, "/abs", follow=True).size_bytes == 0


def test_what_is_told(place: Place) -> None:
    touch(place.folder, "d/file")
    (place.folder / "d" / "file").write_bytes(b"12345")
    (place.folder / "d" / "file").chmod(0o640)
    os.utime(place.folder / "d" / "file", (1, 1234.5))
    (place.folder / "link").symlink_to("d/file")
    told = inside.stat_file(place.inside, place.path("link"), follow=True)
    uid, gid = os.geteuid(), os.getegid()
    changed = (place.folder / "d" / "file").stat().st_ctime
    expected = FileInfo(place.path("link"), FileKind.FILE, 5, 0o640, uid, gid, 1234.5, "", str(uid), str(gid), changed)
    assert told == expected
    told = inside.stat_file(place.inside, place.path("link"), follow=False)
    assert (told.kind, told.target) == (FileKind.SYMLINK, "d/file")


def test_owners_are_told_in_the_sessions_numbers(tmp_path: Path) -> None:
    own = os.geteuid()
    for first, expected in ((own, 0), (own - 1000, 1000), (own + 1, 65534), (own - 65536, 65534), (own - 65535, 65535)):
        place = Inside(Tree(os.open(tmp_path, os.O_PATH), "/", first), "/")
        assert inside.stat_file(place, "/", follow=True).uid == expected
        place.close()


def test_paths_are_tidied_and_not_more(place: Place) -> None:
    touch(place.folder, "a/b/.hidden", "a/...", "c")
    (place.folder / "link").symlink_to("a/b")

    def told(below: str) -> str:
        return inside.stat_file(place.inside, place.path(below), follow=True).path.removeprefix(place.top)

    assert told("a//b/./.hidden") == "/a/b/.hidden"
    assert told("a/b/") == "/a/b"
    assert told("a/...") == "/a/..."
    assert told("link/../...") == "/link/../..."
    assert {info.path for info in place.list("a/./b//")} == {place.path("a/b/.hidden")}


def test_only_files_are_opened(place: Place) -> None:
    os.mkfifo(place.folder / "pipe")
    (place.folder / "dir").mkdir()
    with socket.socket(socket.AF_UNIX) as bound:
        os.chdir(place.folder)
        bound.bind("socket")
        os.chdir("/")
    for name, word in (("pipe", "pipe"), ("dir", "directory"), ("socket", "socket")):
        with pytest.raises(WrongKind, match=word):
            inside.open_regular(place.inside, place.path(name))
    (place.folder / "file").write_bytes(b"content")
    fd, found = inside.open_regular(place.inside, place.path("file"))
    assert (os.read(fd, 100), found.st_size) == (b"content", 7)
    assert not os.get_inheritable(fd)
    os.close(fd)


# ---- listing ---------------------------------------------------------------------------------------------------


def test_a_listing_goes_as_deep_as_it_is_told(place: Place) -> None:
    touch(place.folder, "1", "a/2", "a/b/3", "a/b/c/4")
    (place.folder / "a" / "up").symlink_to("..")
    assert place.names("", 1) == {"1", "a"}
    assert place.names("", 2) == {"1", "a", "a/2", "a/b", "a/up"}
    assert place.names("a", 2) == {"a/2", "a/b", "a/up", "a/b/3", "a/b/c"}
    assert place.names("", 99) == {"1", "a", "a/2", "a/b", "a/up", "a/b/3", "a/b/c", "a/b/c/4"}
    assert [info.target for info in place.list("a") if info.name == "up"] == [".."]


def test_no_step_of_a_listing_is_long(place: Place) -> None:
    """Directories in which nothing is cost time too, and give no entries to count."""
    for number in range(1500):
        (place.folder / f"{number}").mkdir()
    sizes = [len(batch) for batch in inside.list_files(place.inside, place.path(""), 5)]
    assert sum(sizes) == 1500
    assert max(sizes) == 1000
    assert len(sizes) >= 1500 / 250
    touch(place.folder, "0/x", "77/y")
    assert len(place.list("", 5)) == 1502


def test_a_listing_that_is_given_up_closes_what_it_opened(place: Place) -> None:
    for number in range(1200):
        (place.folder / f"{number}").mkdir()
    before = descriptors()
    steps = inside.list_files(place.inside, place.path(""), 3)
    next(steps)
    assert descriptors() > before
    steps.close()
    assert descriptors() == before
    steps = inside.list_files(place.inside, place.path(""), 3)
    next(steps)
    next(steps)
    steps.close()
    assert descriptors() == before


def test_a_directory_that_becomes_a_link_is_not_followed(place: Place) -> None:
    """Nor is one above it: the names of one place would be told as those of another."""
    touch(place.folder, "a/b/inner", "other/b/leak", *(f"a/{number}" for number in range(1100)))
    steps = inside.list_files(place.inside, place.path(""), 9)
    seen = {info.path for info in next(steps)}
    (place.folder / "a").rename(place.folder / "moved")
    (place.folder / "a").symlink_to("other")
    for batch in steps:
        seen |= {info.path for info in batch}
    assert place.path("a/b/leak") not in seen
    assert place.path("other/b/leak") in seen


def test_what_cannot_be_listed_is_told_of_the_first_only(place: Place) -> None:
    touch(place.folder, "file", "d/x")
    with pytest.raises(NotADirectoryError):
        place.list("file")
    with pytest.raises(FileNotFoundError):
        place.list("missing")
    steps = inside.list_files(place.inside, place.path(""), 2)
    deep = place.folder / "d"
    for _ in range(20):
        os.chdir(deep)
        Path("n" * 250).mkdir()
        deep = Path("n" * 250)
    os.chdir("/")
    assert sum(len(batch) for batch in steps) == 4
    assert len(place.list("d", 99)) < 21
    place.remove("d")


def test_a_listing_has_a_bound(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(100):
        (place.folder / f"{number:0100}").mkdir()
    monkeypatch.setattr(inside, "_PENDING_BYTES_MAX", 50 * 228)
    assert len(place.list("", 1)) == 100
    with pytest.raises(OSError, match="still to be listed") as caught:
        place.list("", 2)
    assert caught.value.errno == errno.EMFILE


# ---- making ----------------------------------------------------------------------------------------------------


def test_directories_are_made_once(place: Place) -> None:
    def make(below: str, mode: int = 0o755, *, parents: bool = True) -> bool:
        return inside.make_directory(place.inside, place.path(below), mode, parents=parents)

    assert make("a/b/c", 0o750)
    assert not make("a/b/c", 0o700)
    assert stat.S_IMODE((place.folder / "a/b/c").stat().st_mode) == 0o750
    assert stat.S_IMODE((place.folder / "a").stat().st_mode) & 0o700 == 0o700
    assert make("a/./d/.//e")
    with pytest.raises(FileNotFoundError):
        make("x/y", parents=False)
    with pytest.raises(FileNotFoundError):
        make("x/../y/z")
    assert place.names() == {"a"}
    touch(place.folder, "file")
    (place.folder / "dangling").symlink_to("nowhere")
    (place.folder / "link").symlink_to("a")
    assert not make("link")
    for below in ("file", "file/x", "dangling", "dangling/x"):
        with pytest.raises(OSError, match=r".") as caught:
            make(below)
        assert caught.value.errno in (errno.EEXIST, errno.ENOTDIR, errno.ELOOP)
    assert not (place.folder / "nowhere").exists()


def test_the_group_bit_is_handed_on(place: Place) -> None:
    (place.folder / "shared").mkdir()
    (place.folder / "shared").chmod(0o2775)
    inside.make_directory(place.inside, place.path("shared/a/b"), 0o700, parents=True)
    assert stat.S_IMODE((place.folder / "shared/a").stat().st_mode) & 0o2700 == 0o2700
    assert stat.S_IMODE((place.folder / "shared/a/b").stat().st_mode) == 0o2700
    inside.make_directory(place.inside, place.path("own"), 0o3700, parents=True)
    assert stat.S_IMODE((place.folder / "own").stat().st_mode) == 0o3700


# ---- renaming --------------------------------------------------------------------------------------------------


def test_renaming(place: Place) -> None:
    touch(place.folder, "a", "d/x")
    (place.folder / "b").write_text("b")
    (place.folder / "link").symlink_to("a")

    def rename(below: str, to: str, *, overwrite: bool = True) -> FileInfo:
        return inside.rename(place.inside, place.path(below), place.path(to), overwrite=overwrite)

    with pytest.raises(FileExistsError):
        rename("b", "a", overwrite=False)
    with pytest.raises(FileExistsError):
        rename("b", "link", overwrite=False)
    told = rename("b", "a")
    assert (told.path, told.size_bytes) == (place.path("a"), 1)
    told = rename("link", "d/link", overwrite=False)
    assert (told.kind, told.target, told.path) == (FileKind.SYMLINK, "a", place.path("d/link"))
    for below, to in (("missing", "x"), ("a", "missing/x")):
        with pytest.raises(FileNotFoundError):
            rename(below, to)
    for below, to in ((".", "x"), ("..", "x"), ("", "x"), ("d", "x/.."), ("d", ".")):
        with pytest.raises(OSError, match=r"names no entry|outside") as caught:
            rename(below, to)
        assert caught.value.errno in (errno.EBUSY, errno.EXDEV)
    assert place.names("", 2) == {"a", "d", "d/x", "d/link"}


# ---- removing --------------------------------------------------------------------------------------------------


def test_removing_follows_no_link(place: Place, tmp_path: Path) -> None:
    touch(place.folder, "keep/x", "d/e/f/g", "d/h")
    (place.folder / "d" / "out").symlink_to(tmp_path / "outside")
    (place.folder / "d" / "e" / "keep").symlink_to("../../keep")
    (place.folder / "link").symlink_to("keep")
    os.mkfifo(place.folder / "d" / "pipe")
    with pytest.raises(OSError, match="not empty"):
        place.remove("d", recursive=False)
    place.remove("d")
    place.remove("link")
    assert place.names("", 3) == {"keep", "keep/x"}
    place.remove("keep/x", recursive=False)
    place.remove("keep", recursive=False)
    for below in ("", ".", "..", "keep/.."):
        with pytest.raises(OSError, match=r"."):
            place.remove(below)
    assert place.folder.exists()


def test_removing_is_as_deep_as_it_must_be(place: Place) -> None:
    os.chdir(place.folder)
    for number in range(3000):
        Path("d").mkdir()
        if number % 500 == 0:
            touch(Path("side"), "x", "y/z")
        os.chdir("d")
    os.chdir("/")
    steps = sum(1 for _step in inside.remove(place.inside, place.path("d"), recursive=True))
    assert 2 < steps < 20
    assert place.names() == {"side"}


@pytest.mark.parametrize("remembered", [1, 2, 7])
def test_what_is_not_remembered_is_looked_up_again(
    place: Place, monkeypatch: pytest.MonkeyPatch, remembered: int
) -> None:
    monkeypatch.setattr(removal, "_REMEMBERED_MAX", remembered)
    for one in range(5):
        for two in range(5):
            touch(place.folder, *(f"d/{one}/{two}/{three}/file" for three in range(5)), f"d/{one}/{two}/x")
    place.remove("d")
    assert place.names() == set()


def test_a_directory_that_is_moved_while_it_is_emptied(place: Place) -> None:
    """The way up is not the way down any more: nothing else is touched."""
    touch(place.folder, *(f"d/e/{number}" for number in range(2500)), "d/f", "elsewhere/e/kept", "elsewhere/kept")
    steps = inside.remove(place.inside, place.path("d"), recursive=True)
    next(steps)
    (place.folder / "elsewhere" / "e").rename(place.folder / "elsewhere" / "old")
    (place.folder / "d" / "e").rename(place.folder / "elsewhere" / "e")
    with pytest.raises(WrongKind, match="moved"):
        for _step in steps:
            pass
    assert {"elsewhere/kept", "elsewhere/old/kept", "elsewhere/e"} <= place.names("", 3)


def test_a_directory_that_becomes_a_link_is_not_emptied(place: Place) -> None:
    touch(place.folder, *(f"d/{number}" for number in range(1500)), "d/e/x", "keep/kept")
    steps = inside.remove(place.inside, place.path("d"), recursive=True)
    next(steps)
    (place.folder / "d" / "e").rename(place.folder / "moved")
    (place.folder / "d" / "e").symlink_to("../keep")
    with pytest.raises(OSError, match=r".") as caught:
        for _step in steps:
            pass
    assert caught.value.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENOTEMPTY)
    assert (place.folder / "keep" / "kept").exists()


def test_a_removal_that_is_given_up_closes_what_it_opened(place: Place) -> None:
    touch(place.folder, *(f"d/e/{number}" for number in range(2500)))
    before = descriptors()
    steps = inside.remove(place.inside, place.path("d"), recursive=True)
    next(steps)
    assert descriptors() > before
    steps.close()
    assert descriptors() == before
    place.remove("d")
