"""Requests for files: what no file can be called is refused before anything is touched."""

from collections.abc import Callable
from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.model import (
    AttributesGet,
    AttributesSet,
    DirectoryMake,
    FileAppend,
    FileChange,
    FileCopy,
    FileInfo,
    FileKind,
    FileLines,
    FileList,
    FileRead,
    FileRemove,
    FileRename,
    FileReplace,
    FileStat,
    FileWrite,
    InvalidArgument,
    LimitReached,
    LinkMake,
    limits,
)

REQUESTS: dict[str, Callable[[str], object]] = {
    "read": lambda path: FileRead("s", path),
    "write": lambda path: FileWrite("s", path),
    "list": lambda path: FileList("s", path),
    "stat": lambda path: FileStat("s", path),
    "make": lambda path: DirectoryMake("s", path),
    "remove": lambda path: FileRemove("s", path),
    "rename": lambda path: FileRename("s", path, to="x"),
    "rename to": lambda path: FileRename("s", "x", to=path),
    "append": lambda path: FileAppend("s", path),
    "lines": lambda path: FileLines("s", path),
    "replace": lambda path: FileReplace("s", path, old="a"),
    "copy": lambda path: FileCopy("s", path, to="x"),
    "copy to": lambda path: FileCopy("s", "x", to=path),
    "change": lambda path: FileChange("s", path, mode=0),
    "link": lambda path: LinkMake("s", path, target="x"),
    "link to": lambda path: LinkMake("s", "x", target=path),
    "attributes": lambda path: AttributesGet("s", path),
    "set attributes": lambda path: AttributesSet("s", path),
}
BAD_PATHS = {
    "empty": "",
    "NUL": "a\0b",
    "only NUL": "\0",
    "too long": "x" * 4096,
    "too long in bytes": "ł" * 2048,
    "half a pair": "a\ud800",
    "the other half": "\udfff",
}
GOOD_PATHS = ["/", ".", "..", "x", "a b", "a\nb", "-rf", "ł" * 2047, "x" * 4095, "\udcff\udc80", "//", "a/../../b"]


@pytest.mark.parametrize("path", BAD_PATHS.values(), ids=BAD_PATHS.keys())
@pytest.mark.parametrize("verb", REQUESTS)
def test_paths_that_cannot_be(verb: str, path: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        REQUESTS[verb](path)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("verb", REQUESTS)
def test_paths_that_can_be(verb: str) -> None:
    for path in GOOD_PATHS:
        REQUESTS[verb](path)


@given(st.binary(min_size=1, max_size=4095))
def test_every_name_that_the_kernel_takes_is_taken(name: bytes) -> None:
    path = name.decode("utf-8", "surrogateescape")
    if b"\0" in name:
        with pytest.raises(InvalidArgument):
            FileStat("s", path)
    else:
        assert FileStat("s", path).path.encode("utf-8", "surrogateescape") == name


@pytest.mark.parametrize("make", [FileRead, FileWrite, FileList, FileStat, DirectoryMake, FileRemove])
def test_sessions_and_users_are_checked(make: Callable[..., object]) -> None:
    for session in ("", "../x", "a/b", "x" * 500):
        with pytest.raises(InvalidArgument):
            make(session, "path")
    for user in ("", "a\0b", "\ud800"):
        with pytest.raises(InvalidArgument):
            make("s", "path", user)
    make("s", "path", "root")
    make("s", "path", "1000:50")


def test_a_rename_needs_two_names() -> None:
    with pytest.raises(InvalidArgument):
        FileRename("s", "x")


@pytest.mark.parametrize("number", [-1, limits.FILE_OFFSET_MAX + 1, 1 << 64])
def test_ranges_that_no_file_has(number: int) -> None:
    with pytest.raises(InvalidArgument) as caught:
        FileRead("s", "x", offset=number)
    assert caught.value.context["limit"] == "offset"
    with pytest.raises(InvalidArgument) as caught:
        FileRead("s", "x", length=number)
    assert caught.value.context["limit"] == "length"


def test_the_largest_ranges() -> None:
    assert FileRead("s", "x", offset=limits.FILE_OFFSET_MAX, length=limits.FILE_OFFSET_MAX).length
    assert FileRead("s", "x", length=0).length == 0


@pytest.mark.parametrize("depth", [-1, 0, limits.FILE_DEPTH_MAX + 1])
def test_depths_that_no_listing_has(depth: int) -> None:
    with pytest.raises(InvalidArgument) as caught:
        FileList("s", "x", depth=depth)
    assert caught.value.context["limit"] == "depth"


def test_modes_are_permission_bits() -> None:
    for mode in (-1, 0o10000, 0o100644, 1 << 40):
        with pytest.raises(InvalidArgument):
            FileWrite("s", "x", mode=mode)
        with pytest.raises(InvalidArgument):
            DirectoryMake("s", "x", mode=mode)
    for mode in (0, 0o644, 0o7777):
        assert FileWrite("s", "x", mode=mode).mode == mode
    assert FileWrite("s", "x").mode is None


def test_the_name_is_the_last_of_the_path() -> None:
    def told(path: str) -> FileInfo:
        return FileInfo(path, FileKind.FILE, 0, 0o644, 0, 0, 0.0)

    assert told("/a/b.txt").name == "b.txt"
    assert told("/a/\udcff").name == "\udcff"
    assert told("/").name == ""


def test_values_do_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        FileStat("s", "x").path = "y"  # pyright: ignore[reportAttributeAccessIssue]


WRONG: dict[str, Callable[[], object]] = {
    "append: more than a mode": lambda: FileAppend("s", "x", mode=0o10000),
    "lines: there is no line 0": lambda: FileLines("s", "x", first=0),
    "lines: less than nothing": lambda: FileLines("s", "x", count=-1),
    "lines: of nothing": lambda: FileLines("s", "x", line_bytes=0),
    "lines: longer than is told": lambda: FileLines("s", "x", line_bytes=limits.LINE_BYTES_MAX + 1),
    "replace: nothing": lambda: FileReplace("s", "x", old="", new="a"),
    "replace: by more than a file": lambda: FileReplace("s", "x", old="a", new="b" * (limits.FILE_READ_BYTES_MAX + 1)),
    "change: nothing": lambda: FileChange("s", "x"),
    "change: more than a mode": lambda: FileChange("s", "x", mode=-1),
    "change: nobody": lambda: FileChange("s", "x", owner=""),
    "change: no group": lambda: FileChange("s", "x", group=""),
    "change: no name": lambda: FileChange("s", "x", owner="a\0b"),
    "attribute: of the kernel": lambda: AttributesSet("s", "x", values={"security.capability": b""}),
    "attribute: without a name": lambda: AttributesSet("s", "x", values={"user.": b""}),
    "attribute: with a long name": lambda: AttributesSet("s", "x", values={"user." + "n" * 251: b""}),
    "attribute: large": lambda: AttributesSet("s", "x", values={"user.a": bytes(limits.ATTRIBUTE_BYTES + 1)}),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
def test_what_makes_no_sense_is_refused(wrong: Callable[[], object]) -> None:
    with pytest.raises(InvalidArgument):
        wrong()


def test_too_many_attributes() -> None:
    with pytest.raises(LimitReached):
        AttributesSet("s", "x", values={f"user.{number}": b"" for number in range(limits.ATTRIBUTES_MAX + 1)})
