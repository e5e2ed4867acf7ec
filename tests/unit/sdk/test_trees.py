"""A tree of this machine on its way in, and a tree that a sandbox made on its way out."""

import os
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest

from sandlot.model import FileConflict, FileNotFound, InvalidArgument, MemberKind, SandlotError, TreeTally, limits, tar
from sandlot.sdk.below import Below
from sandlot.sdk.packing import packed
from sandlot.sdk.unpacking import Unpacking, stays_below, unpack

FILE, DIRECTORY, SYMLINK, HARD = MemberKind.FILE, MemberKind.DIRECTORY, MemberKind.SYMLINK, MemberKind.HARD_LINK


def everything(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


async def carried(source: Path, target: Path, *to: str) -> tuple[TreeTally, TreeTally]:
    sent, came = TreeTally(), TreeTally()
    async with aclosing(packed(str(source), sent)) as pieces:
        await unpack(pieces, str(target), to, came)
    return sent, came


def member(name: str, kind: MemberKind = FILE, content: bytes = b"", target: str = "", mode: int = 0o644) -> bytes:
    return tar.header(name, kind, mode, len(content), 7, target) + content + tar.padding(len(content))


async def came(target: Path, *members: bytes, end: bytes = tar.END) -> TreeTally:
    tally = TreeTally()

    async def pieces() -> AsyncIterator[bytes]:
        for one in (*members, end):
            yield one

    await unpack(pieces(), str(target), (), tally)
    return tally


async def test_a_tree_byte_by_byte(tmp_path: Path) -> None:
    source = os.fsencode(tmp_path / "source")
    odd = [b"plain", b"n\xff\xfe", b"new\nline", b" ", b"-", "é".encode(), b"l" * 200]
    for folder in (b"", b"/sub", b"/sub/n\xff"):
        os.mkdir(source + folder, 0o751)  # noqa: PTH102 - bytes
        for at, name in enumerate(odd):
            with open(source + folder + b"/" + name, "wb") as file:  # noqa: PTH123
                file.write(name[:20] * (at * 60_000))
    (tmp_path / "source" / "sub" / "plain").chmod(0o4751)
    os.utime(tmp_path / "source" / "sub" / "plain", (5, 1_000_000_000))
    (tmp_path / "source" / "link").symlink_to("sub/plain")
    os.mkfifo(tmp_path / "source" / "pipe")
    (tmp_path / "target").mkdir()
    sent, got = await carried(tmp_path / "source", tmp_path / "target", "got")
    assert (sent.files, sent.directories, sent.links, sent.skipped_count) == (21, 3, 1, 1)
    assert (got.files, got.directories, got.links, got.size_bytes) == (21, 3, 1, sent.size_bytes)
    there = os.fsencode(tmp_path / "target" / "got")
    for folder in (b"", b"/sub", b"/sub/n\xff"):
        assert os.stat(there + folder).st_mode & 0o7777 == 0o751  # noqa: PTH116
        for at, name in enumerate(odd):
            with open(there + folder + b"/" + name, "rb") as file:  # noqa: PTH123
                assert file.read() == name[:20] * (at * 60_000)
    found = (tmp_path / "target" / "got" / "sub" / "plain").stat()
    assert (found.st_mode & 0o7777, found.st_mtime) == (0o751, 1_000_000_000)
    assert (tmp_path / "target" / "got" / "link").readlink() == Path("sub/plain")


async def test_wrong_sources(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"")
    for name, error in (("gone", FileNotFound), ("f", FileConflict)):
        with pytest.raises(error) as caught:
            async for _piece in packed(str(tmp_path / name), TreeTally()):
                pass
        assert caught.value.next_step


@pytest.mark.parametrize(
    ("path", "target", "stays"),
    [
        ("a", "b", True),
        ("a", "b/./c", True),
        ("d/a", "../b", True),
        ("d/e/a", "../../b", True),
        ("a", "/etc/passwd", False),
        ("a", "..", False),
        ("a", "../b", False),
        ("d/a", "../../b", False),
        ("a", "b/..", False),  # b may be a link by then
        ("d/a", "x/../../..", False),
    ],
)
def test_links_that_stay_below(path: str, target: str, stays: bool) -> None:
    assert stays_below(tuple(path.split("/")), target) is stays


async def test_links_that_lead_out_are_left_out_also_in_a_chain(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    tally = await came(
        target,
        member("d", DIRECTORY, mode=0o755),
        member("d/up", SYMLINK, target=".."),
        member("out", SYMLINK, target="d/up/.."),  # as text it is `d`, in truth what is above
        member("root", SYMLINK, target="/"),
        member("fine", SYMLINK, target="d/up"),
        member("hard", HARD, target="d/f"),
    )
    assert everything(target) == ["d", "d/up", "fine"]
    assert (tally.links, tally.skipped_count) == (2, 3)


@pytest.mark.parametrize("through", ["link", "d/link", "file"])
async def test_nothing_is_written_through_what_is_no_directory(tmp_path: Path, through: str) -> None:
    target, outside = tmp_path / "target", tmp_path / "outside"
    target.mkdir()
    outside.mkdir()
    (target / "d").mkdir()
    (target / "link").symlink_to(outside)  # of the person, not of the archive
    (target / "d" / "link").symlink_to(outside)
    (target / "file").write_bytes(b"mine")
    before = everything(tmp_path)
    for evil in (
        member(f"{through}/evil", content=b"x"),
        member(through, DIRECTORY),
        member(f"{through}/d", DIRECTORY),
    ):
        with pytest.raises(FileConflict):
            await came(target, evil)
    assert everything(tmp_path) == before
    assert (target / "file").read_bytes() == b"mine"


async def test_what_is_cut_off_leaves_no_half_file(tmp_path: Path) -> None:
    (tmp_path / "new").write_bytes(b"as it was")
    whole = member("first", content=b"1") + member("new", content=b"x" * 5000)
    with pytest.raises(InvalidArgument, match="ends before its end"):
        await came(tmp_path, whole[:3000], end=b"")
    assert everything(tmp_path) == ["first", "new"]
    assert (tmp_path / "new").read_bytes() == b"as it was"


async def test_a_directory_that_forbids_its_owner_is_filled_first(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir(mode=0o711)
    await came(
        tmp_path,
        member("old", DIRECTORY, mode=0o777),
        member("d", DIRECTORY, mode=0o500),
        member("d/in", DIRECTORY, mode=0),
        member("d/in/f", content=b"x"),
    )
    modes = [(tmp_path / name).stat().st_mode & 0o7777 for name in ("old", "d", "d/in", "d/in/f")]
    assert modes == [0o711, 0o500, 0, 0o644]  # one that was there stays as it was


def test_a_hundred_thousand_members_take_no_memory(tmp_path: Path) -> None:
    tree = Below(str(tmp_path))
    new = Unpacking(tree, (), tally := TreeTally())
    piece = b"".join(member(f"a-longer-name-{n}", SYMLINK, target="/") for n in range(1000))
    tracemalloc.start()
    try:
        for _ in range(100):
            new.feed(piece)
        _now, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        new.close()
        tree.close()
    assert (tally.skipped_count, len(tally.skipped)) == (100_000, limits.TREE_SKIPPED_TOLD)
    assert peak < 4 * limits.MIB


async def test_errors_name_the_file(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    with pytest.raises(SandlotError, match="d: a directory is there already"):
        await came(tmp_path, member("d", content=b"x"))
