"""A directory that is touched below a handle: nothing leads out of it."""

import os
import threading
from pathlib import Path

import pytest

from sandlot.environments.tree import Tree
from sandlot.model import FileConflict, FileKind, PermissionDenied


@pytest.fixture
def top(tmp_path: Path) -> Path:
    found = tmp_path / "top"
    found.mkdir()
    (tmp_path / "secret").write_text("secret")
    return found


def content(tree: Tree, path: str) -> bytes:
    fd, _info = tree.open(path)
    with os.fdopen(fd, "rb") as file:
        return file.read()


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def write(tree: Tree, path: str, data: bytes) -> None:
    def fill(fd: int) -> None:
        assert os.write(fd, data) == len(data)

    tree.replace(path, None, fill)


@pytest.mark.parametrize("way", ["../secret", "d/../../secret", "out", "chain", "up/secret", "/etc/passwd", "abs"])
def test_no_path_and_no_link_leads_out(top: Path, way: str) -> None:
    (top / "d").mkdir()
    (top / "out").symlink_to("../secret")
    (top / "chain").symlink_to("d/../out")
    (top / "up").symlink_to("..")
    (top / "abs").symlink_to(top.parent / "secret")
    tree = Tree(str(top))
    with pytest.raises(PermissionDenied):
        tree.open(way)
    with pytest.raises(PermissionDenied):
        tree.stat(way)
    with pytest.raises(PermissionDenied):
        write(tree, way, b"x")
    with pytest.raises(PermissionDenied):
        tree.make_parents("up/made/f")
    assert (top.parent / "secret").read_text() == "secret"


def test_links_inside_lead_where_they_lead_a_command(top: Path) -> None:
    tree = Tree(str(top))
    write(tree, "real", b"one")
    (top / "relative").symlink_to("real")
    (top / "absolute").symlink_to(top / "real")
    (top / "loop").symlink_to("loop")
    for link in ("relative", "absolute", str(top / "absolute")):
        assert content(tree, link) == b"one"
    write(tree, "absolute", b"two")
    assert (top / "absolute").is_symlink()
    assert (top / "real").read_bytes() == b"two"
    assert tree.stat("relative", follow=False).kind is FileKind.SYMLINK
    with pytest.raises(OSError, match="symbolic links"):
        tree.open("loop")


def test_what_is_no_file_is_told_and_not_opened(top: Path) -> None:
    os.mkfifo(top / "pipe")
    tree = Tree(str(top))
    for path in ("pipe", "."):
        with pytest.raises(FileConflict):
            tree.open(path)
        with pytest.raises(FileConflict):
            write(tree, path, b"x")


def test_a_write_that_fails_leaves_the_file_and_nothing_else(top: Path) -> None:
    tree = Tree(str(top))
    write(tree, "f", b"old")
    (top / "f").chmod(0o640)

    def half(fd: int) -> None:
        os.write(fd, b"new")
        raise OSError(28, "full")

    with pytest.raises(OSError, match="full"):
        tree.replace("f", None, half)
    assert [path.name for path in top.iterdir()] == ["f"]
    assert (top / "f").read_bytes() == b"old"
    write(tree, "f", b"new")
    assert (top / "f").stat().st_mode & 0o777 == 0o640


def test_a_name_that_is_exchanged_all_the_time_never_leads_out(top: Path) -> None:
    """A directory becomes a link to above, and back, while files are written and read through it."""
    tree = Tree(str(top))
    (top / "d").mkdir()
    over = threading.Event()

    def exchange() -> None:
        while not over.is_set():
            (top / "d").rename(top / "aside")
            (top / "d").symlink_to("..")
            (top / "d").unlink()
            (top / "aside").rename(top / "d")

    thread = threading.Thread(target=exchange)
    thread.start()
    try:
        for _ in range(2000):
            try:
                write(tree, "d/secret", b"changed")
                assert content(tree, "d/secret") == b"changed"
            except (PermissionDenied, OSError):
                continue
    finally:
        over.set()
        thread.join()
    assert (top.parent / "secret").read_text() == "secret"


def test_all_below_is_told_in_order_and_deep_ones_end(top: Path) -> None:
    for name in ("b", "a/z", "a/y/x", "c"):
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text("")
    (top / "a" / "loop").symlink_to(top)
    found = [path for path, _info in Tree(str(top)).below(".", 10, lambda _path: True)]
    assert found == ["a", "a/loop", "a/y", "a/y/x", "a/z", "b", "c"]
    fd = os.open(top, os.O_RDONLY)
    for _ in range(400):
        os.mkdir("d", dir_fd=fd)
        inner = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)
    before = descriptors()
    assert sum(1 for _ in Tree(str(top)).below(".", 1024, lambda _path: True)) == len(found) + 256
    assert descriptors() == before
