"""New content takes the place of the old in one moment, or not at all."""

import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sandlot.contracts.runtime import Tree
from sandlot.host.inside import Inside, WrongKind
from sandlot.host.replacement import Replacement
from sandlot.model import FileInfo


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tree").mkdir()
    (tmp_path / "outside").write_text("outside")
    return tmp_path / "tree"


@pytest.fixture(params=["without a name", "with a name"])
def inside(folder: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Inside]:
    """Not every filesystem can make a file that has no name; those that cannot say so as to this flag."""
    if request.param == "with a name":
        monkeypatch.setattr(os, "O_TMPFILE", os.O_DIRECTORY)
    inside = Inside(Tree(os.open(folder, os.O_PATH | os.O_DIRECTORY), "/", None), "/")
    before = descriptors()
    yield inside
    assert descriptors() == before
    inside.close()
    assert (folder.parent / "outside").read_text() == "outside"
    assert not list(folder.rglob(".sandlot-*"))


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def replace(inside: Inside, path: str, *content: bytes, mode: int | None = None, parents: bool = True) -> FileInfo:
    new = Replacement(inside, path, mode, parents=parents)
    for piece in content:
        new.write(piece)
    told = new.commit()
    assert told is not None
    return told


def test_a_new_file(inside: Inside, folder: Path) -> None:
    told = replace(inside, "/a/b/file", b"one", b"two")
    assert (told.path, told.size_bytes, told.mode) == ("/a/b/file", 6, 0o644)
    assert (folder / "a/b/file").read_bytes() == b"onetwo"
    assert stat.S_IMODE((folder / "a/b/file").stat().st_mode) == 0o644
    with pytest.raises(FileNotFoundError):
        Replacement(inside, "/x/file", None, parents=False)
    assert not (folder / "x").exists()


def test_the_old_file_is_there_until_the_new_one_is(inside: Inside, folder: Path) -> None:
    file = folder / "file"
    file.write_bytes(b"old")
    file.chmod(0o6754)
    old = file.stat().st_ino
    new = Replacement(inside, "/file", None, parents=True)
    new.write(b"new")
    assert file.read_bytes() == b"old"
    assert new.commit() is not None
    assert file.read_bytes() == b"new"
    assert file.stat().st_ino != old
    assert stat.S_IMODE(file.stat().st_mode) == 0o754
    new.close()


def test_without_a_commit_nothing_has_happened(inside: Inside, folder: Path) -> None:
    (folder / "file").write_bytes(b"old")
    for path in ("/file", "/other"):
        new = Replacement(inside, path, None, parents=True)
        new.write(b"new")
        new.close()
        new.close()
    assert {entry.name: entry.read_bytes() for entry in folder.iterdir()} == {"file": b"old"}


def test_links_at_the_end_are_followed(inside: Inside, folder: Path) -> None:
    (folder / "d").mkdir()
    (folder / "one").symlink_to("two")
    (folder / "two").symlink_to("/three")
    (folder / "three").symlink_to("d/file")
    assert replace(inside, "/one", b"x").path == "/d/file"
    assert replace(inside, "/one", b"yy").size_bytes == 2
    assert (folder / "d" / "file").read_bytes() == b"yy"
    assert (folder / "one").is_symlink()
    (folder / "out").symlink_to("../../../outside")
    assert replace(inside, "/out", b"inside").path == "/outside"
    assert (folder / "outside").read_bytes() == b"inside"


WRONG: dict[str, tuple[Callable[[Path], None], str, set[int]]] = {
    "directory": (lambda folder: (folder / "x").mkdir(), "/x", {errno.EISDIR}),
    "slash": (lambda folder: None, "/x/", {errno.EISDIR}),
    "root": (lambda folder: None, "/", {errno.EISDIR}),
    "dot": (lambda folder: (folder / "d").mkdir(), "/d/.", {errno.EBUSY}),
    "pipe": (lambda folder: os.mkfifo(folder / "x"), "/x", {errno.EINVAL}),
    "loop": (lambda folder: (folder / "x").symlink_to("x"), "/x", {errno.ELOOP}),
    "below a file": (lambda folder: (folder / "x").touch(), "/x/y", {errno.ENOTDIR}),
    "below a dangling link": (lambda folder: (folder / "x").symlink_to("y"), "/x/y", {errno.ELOOP}),
    "link to a directory": (lambda folder: (folder / "x").symlink_to("."), "/x", {errno.EBUSY}),
    "long name": (lambda folder: None, "/" + "n" * 256, {errno.ENAMETOOLONG}),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_cannot_be_written(inside: Inside, folder: Path, what: str) -> None:
    make, path, expected = WRONG[what]
    make(folder)
    with pytest.raises(OSError, match=r".") as caught:
        Replacement(inside, path, None, parents=True).close()
    assert caught.value.errno in expected
    assert isinstance(caught.value, WrongKind) is (what in ("directory", "slash", "root", "pipe"))


def test_what_takes_the_place_meanwhile(inside: Inside, folder: Path) -> None:
    new = Replacement(inside, "/file", None, parents=True)
    new.write(b"new")
    (folder / "file").symlink_to("../outside")
    assert new.commit() is not None
    assert (folder / "file").read_bytes() == b"new"
    assert not (folder / "file").is_symlink()
    new = Replacement(inside, "/file", None, parents=True)
    (folder / "file").unlink()
    (folder / "file").mkdir()
    with pytest.raises(IsADirectoryError):
        new.commit()
    assert list(folder.iterdir()) == [folder / "file"]


def test_a_directory_that_goes_away_meanwhile(inside: Inside, folder: Path) -> None:
    (folder / "d").mkdir()
    new = Replacement(inside, "/d/file", None, parents=True)
    for entry in (folder / "d").iterdir():
        entry.unlink()
    (folder / "d").rmdir()
    with pytest.raises(FileNotFoundError):
        new.commit()


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing stops root")
def test_whoever_may_write_the_file_alone_writes_into_it(inside: Inside, folder: Path) -> None:
    (folder / "tmp").mkdir()
    (folder / "d").mkdir()
    (folder / "d" / "file").write_bytes(b"old and long")
    (folder / "d").chmod(0o500)
    old = (folder / "d" / "file").stat().st_ino
    try:
        with pytest.raises(PermissionError):
            Replacement(inside, "/d/new", None, parents=True)
        new = Replacement(inside, "/d/file", None, parents=True)
        new.write(b"new")
        assert (folder / "d" / "file").read_bytes() == b"old and long"
        assert new.commit() is not None
        assert (folder / "d" / "file").read_bytes() == b"new"
        assert (folder / "d" / "file").stat().st_ino == old
        (folder / "d" / "file").chmod(0o400)
        with pytest.raises(PermissionError):
            Replacement(inside, "/d/file", None, parents=True)
    finally:
        (folder / "d").chmod(0o700)
