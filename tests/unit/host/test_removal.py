"""Trees go whole, however deep."""

import os
from pathlib import Path

import pytest

from sandlot.host.removal import empty, remove_tree


def nest(folder: Path, depth: int) -> None:
    """Deeper than a path can name and than a recursion can go."""
    here = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(depth):
        os.mkdir("deep", dir_fd=here)
        below = os.open("deep", os.O_RDONLY | os.O_DIRECTORY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


@pytest.mark.parametrize("depth", [1, 100, 3000])
def test_deep(tmp_path: Path, depth: int) -> None:
    top = tmp_path / "top"
    top.mkdir()
    nest(top, depth)
    remove_tree(top)
    assert list(tmp_path.iterdir()) == []


def test_wide_and_mixed(tmp_path: Path) -> None:
    top, other = tmp_path / "top", tmp_path / "other"
    other.mkdir()
    (other / "kept").write_text("kept")
    for number in range(50):
        (top / str(number) / "d").mkdir(parents=True)
        (top / str(number) / "f").write_text("x")
        (top / str(number) / "link").symlink_to(other)
    remove_tree(top)
    assert not top.exists()
    assert (other / "kept").read_text() == "kept", "a link was followed"


def test_what_modes_forbid(tmp_path: Path) -> None:
    closed = tmp_path / "top" / "closed"
    closed.mkdir(parents=True)
    (closed / "f").write_text("x")
    closed.chmod(0)
    remove_tree(tmp_path / "top")
    assert not (tmp_path / "top").exists()


def test_a_file_and_a_link(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path)
    remove_tree(tmp_path / "link")
    remove_tree(tmp_path / "file")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FileNotFoundError):
        remove_tree(tmp_path / "file")


def test_files_that_someone_has_open_hold_nothing_any_more(tmp_path: Path) -> None:
    """What is outside, and is only linked to, keeps its content."""
    top, other = tmp_path / "top", tmp_path / "other"
    (top / "d").mkdir(parents=True)
    other.write_text("kept")
    (top / "d" / "link").symlink_to(other)
    os.mkfifo(top / "d" / "pipe")
    (top / "d" / "file").write_text("x" * 1000)
    above = os.open(top, os.O_PATH | os.O_DIRECTORY)
    with (top / "d" / "file").open() as still_open:
        for _pause in empty(above, ".", shorten=True):
            pass
        assert os.fstat(still_open.fileno()).st_size == 0
    os.close(above)
    assert list(top.iterdir()) == []
    assert other.read_text() == "kept"
