"""Trees copied whole, by root and by someone who is not."""

import fcntl
import os
import shutil
import socket
import stat
import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest

from sandlot.host.kernel import sync_filesystem
from sandlot.host.removal import remove_tree
from sandlot.host.storage.copying import Patience, can_clone, copy_tree, copy_volume
from sandlot.model import Unavailable
from tests.nobody import as_nobody, own_folder

MIB = 1 << 20
DEEP = 3000  # names of its path together are longer than a path may be


def make_tree(top: Path) -> None:
    (top / "folder" / "inner").mkdir(parents=True)
    (top / "folder" / "inner" / "file").write_text("content")
    os.link(top / "folder" / "inner" / "file", top / "other name")
    os.link(top / "folder" / "inner" / "file", top / "folder" / "third name")
    (top / "link").symlink_to("folder/inner")
    os.link(top / "link", top / "link again", follow_symlinks=False)
    (top / "away").symlink_to("/etc/passwd")
    os.mkfifo(top / "pipe", 0o640)
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(str(top / "socket"))
    with (top / "sparse").open("wb") as file:
        file.seek(64 * MIB)
        file.write(b"end")
    (top / "program").write_text("#!/bin/sh\n")
    (top / "program").chmod(0o4750)
    os.setxattr(top / "program", "user.colour", b"blue")
    os.setxattr(top / "folder", "user.colour", b"red")
    (top / b"not \xff text \n".decode(errors="surrogateescape")).touch()
    (top / "secret").write_text("hidden")
    (top / "secret").chmod(0)
    (top / "read only").mkdir()
    (top / "read only" / "inner").mkdir()
    (top / "read only" / "inner" / "file").touch()
    (top / "read only").chmod(0o500)
    (top / "closed").mkdir()
    (top / "closed" / "file").write_text("in there")
    os.link(top / "closed" / "file", top / "out of there")
    (top / "closed").chmod(0)
    for number, name in enumerate(("folder/inner/file", "link", "pipe", "secret", "closed", "read only", "folder")):
        os.utime(top / name, ns=(number, 10**18 + number), follow_symlinks=False)


def marks(top: Path) -> dict[str, object]:
    """Of every path, all that must be the same. As root: what is closed is looked into."""
    found: dict[str, object] = {}
    numbers: dict[int, str] = {}
    for folder, folders, files in os.walk(top):
        for name in sorted((*folders, *files, ".")):
            path = Path(folder) / name
            told = path.lstat()
            key = str(path.relative_to(top))
            first = key if stat.S_ISDIR(told.st_mode) else numbers.setdefault(told.st_ino, key)
            content = path.read_bytes() if stat.S_ISREG(told.st_mode) else b""
            extra = {each: os.getxattr(path, each, follow_symlinks=False) for each in _attributes(path)}
            found[key] = (told.st_mode, told.st_uid, told.st_gid, told.st_nlink, told.st_mtime_ns, content, extra)
            found[f"first name of {key}"] = first
            if path.is_symlink():
                found[f"target of {key}"] = path.readlink()
    return found


def _attributes(path: Path) -> list[str]:
    return os.listxattr(path, follow_symlinks=False)


@pytest.mark.root
@pytest.mark.parametrize("by", ["root", "nobody"])
def test_everything_is_as_it_was(by: str) -> None:
    with own_folder() as folder:
        one, other = folder / "one", folder / "other"

        def act() -> None:
            one.mkdir()
            make_tree(one)
            other.mkdir()
            copy_tree(one, other)

        if by == "root":
            act()
        else:
            as_nobody(act)
        told = marks(one)
        assert marks(other) == told
        assert stat.S_IMODE((one / "closed").stat().st_mode) == 0, "what was opened for the copy is closed again"
        assert (other / "sparse").stat().st_blocks * 512 < MIB, "holes stay holes"
        if by == "root":
            os.chown(one / "program", 1234, 5678)
            os.mknod(one / "gone", stat.S_IFCHR, os.makedev(0, 0))
            os.setxattr(one / "folder", "trusted.overlay.opaque", b"y")
            third = folder / "third"
            third.mkdir()
            copy_tree(one, third)
            assert marks(third) == marks(one)


def test_it_may_be_deeper_than_a_path_is_long(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for top in (one, other):
        top.mkdir()
    here = os.open(one, os.O_RDONLY)
    for _ in range(DEEP):
        os.mkdir("down", dir_fd=here)
        inner = os.open("down", os.O_RDONLY | os.O_DIRECTORY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(os.open("file", os.O_CREAT, dir_fd=here))
    os.link("file", "name", src_dir_fd=here, dst_dir_fd=here)
    os.close(here)
    copy_tree(one, other)
    here, depth = os.open(other, os.O_RDONLY), 0
    while "down" in (names := set(os.listdir(here))):
        inner = os.open("down", os.O_RDONLY | os.O_DIRECTORY, dir_fd=here)
        os.close(here)
        here, depth = inner, depth + 1
    assert (depth, names) == (DEEP, {"file", "name"})
    assert os.stat("file", dir_fd=here).st_nlink == 2, "the folder of links is gone, and they are there"
    os.close(here)
    for top in (one, other):
        remove_tree(top)  # others who tidy up have no patience for it


async def test_a_copy_that_fails_is_undone_and_told(tmp_path: Path) -> None:
    undone: list[str] = []
    (tmp_path / "target").mkdir()
    with pytest.raises(Unavailable, match="No such file"):
        await copy_volume(tmp_path / "nothing", tmp_path / "target", lambda: undone.append("once"))
    assert undone == ["once"]


def test_patience_ends(tmp_path: Path) -> None:
    for name in ("one", "other", "third"):
        (tmp_path / name).mkdir()
    (tmp_path / "one" / "file").touch()
    with pytest.raises(TimeoutError, match="longer than 0 s"):
        copy_tree(tmp_path / "one", tmp_path / "other", Patience(0))
    given_up = Patience(60)
    given_up.end()
    with pytest.raises(InterruptedError):
        copy_tree(tmp_path / "one", tmp_path / "third", given_up)


@pytest.fixture
def sharing(tmp_path: Path) -> Generator[Path]:
    """A filesystem that can share blocks."""
    if shutil.which("mkfs.btrfs") is None:
        pytest.skip("mkfs.btrfs is not installed")
    image, place = tmp_path / "image", tmp_path / "place"
    with image.open("wb") as file:
        file.truncate(256 * MIB)
    place.mkdir()
    subprocess.run(["mkfs.btrfs", "-q", str(image)], check=True, timeout=60)
    subprocess.run(["mount", "-o", "loop", str(image), str(place)], check=True, timeout=60)
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True, timeout=60)


@pytest.mark.root
def test_content_is_shared_where_that_works(sharing: Path) -> None:
    assert can_clone(sharing)
    for name in ("one", "other"):
        (sharing / name).mkdir()
    (sharing / "one" / "file").write_bytes(os.urandom(16 * MIB))
    sync_filesystem(sharing)
    before = shutil.disk_usage(sharing).used
    copy_tree(sharing / "one", sharing / "other")
    sync_filesystem(sharing)
    assert shutil.disk_usage(sharing).used - before < 4 * MIB
    assert (sharing / "other" / "file").read_bytes() == (sharing / "one" / "file").read_bytes()


def test_whether_blocks_are_shared_is_found_out_by_trying(tmp_path: Path) -> None:
    """By another way to the same answer: a clone of two files that have names."""
    (tmp_path / "one").write_bytes(b"x" * 4096)
    with (tmp_path / "one").open("rb") as one, (tmp_path / "other").open("wb") as other:
        try:
            fcntl.ioctl(other, 0x40049409, one.fileno())
            works = True
        except OSError:
            works = False
    assert can_clone(tmp_path) == works
    assert {path.name for path in tmp_path.iterdir()} == {"one", "other"}
