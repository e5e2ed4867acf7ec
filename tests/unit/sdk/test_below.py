"""Files below one directory: whatever a name says nothing outside is touched, and no file is there half."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandlot.model import (
    FileConflict,
    FileNotFound,
    InvalidArgument,
    LimitReached,
    PermissionDenied,
    SandlotError,
    Unavailable,
)
from sandlot.sdk import below
from sandlot.sdk.below import Below, is_name, translate

BAD_NAMES = ["", ".", "..", "a/b", "/etc", "../x", "a\0b"]


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Below]:
    (tmp_path / "tree").mkdir()
    (tmp_path / "outside").mkdir()
    opened = Below(str(tmp_path / "tree"))
    yield opened
    opened.close()


@pytest.fixture(params=["unnamed", "named"])
def written(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to hide a file until it is whole: where the filesystem has files without a name, and where not."""
    if request.param == "named":
        real = os.open

        def refuse(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            if flags & os.O_TMPFILE == os.O_TMPFILE:
                raise OSError(errno.EOPNOTSUPP, "no such thing here")
            return real(path, flags, mode, dir_fd=dir_fd)

        monkeypatch.setattr(below.os, "open", refuse)
    return request.param


def put(tree: Below, *parts: str, data: bytes = b"new", mode: int = 0o644) -> None:
    file = tree.new_file(parts)
    try:
        file.write(data)
        file.commit(mode)
    finally:
        file.close()


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_a_file_is_there_whole_or_not_at_all(tree: Below, tmp_path: Path, written: str) -> None:
    folder = tmp_path / "tree"
    file = tree.new_file(("f",))
    file.write(b"half")
    assert not (folder / "f").exists()
    assert len(names(folder)) == (1 if written == "named" else 0)
    file.close()
    file.close()
    assert names(folder) == []
    put(tree, "f", data=b"whole", mode=0o640)
    assert (folder / "f").read_bytes() == b"whole"
    assert (folder / "f").stat().st_mode & 0o7777 == 0o640
    assert names(folder) == ["f"]


def test_a_file_that_is_there_is_replaced_and_never_half(tree: Below, tmp_path: Path, written: str) -> None:
    del written
    folder = tmp_path / "tree"
    (folder / "f").write_bytes(b"old")
    os.link(folder / "f", folder / "other name")
    file = tree.new_file(("f",))
    file.write(b"half")
    assert (folder / "f").read_bytes() == b"old"
    file.close()
    assert (folder / "f").read_bytes() == b"old"
    put(tree, "f")
    assert (folder / "f").read_bytes() == b"new"
    assert (folder / "other name").read_bytes() == b"old"
    assert names(folder) == ["f", "other name"]


def test_a_file_made_by_someone_meanwhile_is_replaced(tree: Below, tmp_path: Path, written: str) -> None:
    del written
    file = tree.new_file(("f",))
    file.write(b"ours")
    (tmp_path / "tree" / "f").write_bytes(b"theirs")
    file.commit(0o600)
    file.close()
    assert (tmp_path / "tree" / "f").read_bytes() == b"ours"
    assert names(tmp_path / "tree") == ["f"]


def test_nobody_else_reads_a_file_that_is_not_whole(tree: Below, tmp_path: Path, written: str) -> None:
    folder, before = tmp_path / "tree", os.umask(0)
    try:
        file = tree.new_file(("f",))
        modes = [(folder / name).stat().st_mode & 0o7777 for name in names(folder)]
        assert modes == ([0o600] if written == "named" else [])
        file.commit(0o6755)
        file.close()
    finally:
        os.umask(before)
    assert (folder / "f").stat().st_mode & 0o7777 == 0o755  # and it gives no right to become someone else


@pytest.mark.parametrize("name", BAD_NAMES)
def test_names_that_are_none(tree: Below, tmp_path: Path, name: str) -> None:
    assert not is_name(name)
    for parts in ((name,), ("d", name), (name, "x")):
        with pytest.raises((OSError, ValueError)):
            tree.new_file(parts)
        with pytest.raises((OSError, ValueError)):
            tree.make_directory(parts)
    assert names(tmp_path) == ["outside", "tree"]
    assert names(tmp_path / "tree") == names(tmp_path / "outside") == []


def test_names_that_are_some() -> None:
    for name in ("a", "...", "..a", "a b", "-", "\udcff", ".sandlot-x", "a\nb", "a\\b", "é"):
        assert is_name(name)


def test_links_on_the_way_are_not_followed(tree: Below, tmp_path: Path) -> None:
    folder, outside = tmp_path / "tree", tmp_path / "outside"
    (folder / "to").symlink_to(outside)
    (folder / "up").symlink_to("..")
    for link in ("to", "up"):
        with pytest.raises(OSError, match=r"[Nn]ot a directory|[Ss]ymbolic"):
            tree.new_file((link, "f"))
        with pytest.raises(FileConflict, match="a link is there"):
            tree.make_directory((link,))
        with pytest.raises(OSError, match=r"[Nn]ot a directory|[Ss]ymbolic"):
            tree.make_directory((link, "d"))
        with pytest.raises(OSError, match=r"[Nn]ot a directory|[Ss]ymbolic"):
            tree.set_mode((link,), 0o777)
    assert names(outside) == []
    assert names(tmp_path) == ["outside", "tree"]


def test_nothing_is_written_through_a_link_or_into_a_pipe(tree: Below, tmp_path: Path) -> None:
    folder, secret = tmp_path / "tree", tmp_path / "outside" / "secret"
    secret.write_bytes(b"secret")
    (folder / "link").symlink_to(secret)
    (folder / "dangling").symlink_to(tmp_path / "outside" / "new")
    (folder / "dir").mkdir()
    os.mkfifo(folder / "pipe")
    for name, what in (("link", "a link"), ("dangling", "a link"), ("dir", "a directory"), ("pipe", "a pipe")):
        with pytest.raises(FileConflict, match=f"{name}: {what} is there already") as caught:
            tree.new_file((name,))
        assert caught.value.next_step
    assert secret.read_bytes() == b"secret"
    assert names(tmp_path / "outside") == ["secret"]
    assert names(folder) == ["dangling", "dir", "link", "pipe"]


def test_a_directory_that_becomes_a_link_is_left(tree: Below, tmp_path: Path) -> None:
    """Whoever swaps it after we looked gets his file nowhere, or where we were."""
    folder = tmp_path / "tree"
    assert tree.make_directory(("d",))
    put(tree, "d", "one")
    tree.folder(())
    (folder / "d").rename(folder / "moved")
    (folder / "d").symlink_to(tmp_path / "outside")
    with pytest.raises(OSError, match=r"[Nn]ot a directory|[Ss]ymbolic"):
        put(tree, "d", "two")
    assert names(tmp_path / "outside") == []


def test_directories(tree: Below, tmp_path: Path) -> None:
    folder = tmp_path / "tree"
    assert tree.make_directory(("a",))
    assert (folder / "a").stat().st_mode & 0o7777 == 0o700
    assert not tree.make_directory(("a",))
    assert tree.make_directory(("a", "b"))
    put(tree, "a", "b", "f")
    put(tree, "a", "g")
    tree.set_mode(("a", "b"), 0o2555)
    assert (folder / "a" / "b").stat().st_mode & 0o7777 == 0o555
    (folder / "file").write_bytes(b"")
    with pytest.raises(FileConflict, match="a file is there"):
        tree.make_directory(("file",))
    with pytest.raises(FileNotFoundError):
        tree.make_directory(("gone", "d"))


def test_no_descriptor_is_left(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    tree = Below(str(tmp_path))
    for n in range(5):
        tree.make_directory((f"d{n}",))
        put(tree, f"d{n}", "f")
        with pytest.raises(FileConflict):
            tree.new_file((f"d{n}",))
    tree.close()
    tree.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOENT, FileNotFound),
        (errno.EACCES, PermissionDenied),
        (errno.EPERM, PermissionDenied),
        (errno.EROFS, PermissionDenied),
        (errno.ENOSPC, LimitReached),
        (errno.EDQUOT, LimitReached),
        (errno.ELOOP, FileConflict),
        (errno.ENOTDIR, FileConflict),
        (errno.EISDIR, FileConflict),
        (errno.ENAMETOOLONG, InvalidArgument),
        (errno.EIO, Unavailable),
    ],
)
def test_what_the_kernel_says_in_words_of_ours(number: int, kind: type[SandlotError]) -> None:
    error = translate(OSError(number, os.strerror(number)), "some/file")
    assert type(error) is kind
    assert error.message.startswith("some/file: ")
    assert error.next_step or kind is Unavailable
