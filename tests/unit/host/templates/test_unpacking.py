"""Any bytes are a tree or are refused: nothing is written outside, and nothing else is raised."""

import io
import os
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandlot.host.templates.unpacking.layer import TreeWriter
from sandlot.host.templates.unpacking.refusal import Bounds, Refused
from sandlot.host.templates.unpacking.tar import Entry, Kind, TarReader
from tests.archives import entry, folder, hard_link, link, tar

BOUNDS = Bounds(bytes_max=1 << 20, entries_max=1000, ratio_max=100, depth_max=16, free_min=0)
NAMES = st.sampled_from(["a", "b", "a/b", "a/b/c", "b/a", "/a", "./a", "a/../b", "..", ".", "a//b", ".wh.a", "a/.wh.b"])
MORE_NAMES = NAMES | st.sampled_from([".wh..wh..opq", "a/.wh..wh..opq", ".wh..", ".wh.", "n" * 260, "\udcff", "a\nb"])
MEMBERS = st.one_of(
    st.builds(entry, MORE_NAMES, st.binary(max_size=2000), mode=st.integers(0, 0o7777)),
    st.builds(folder, MORE_NAMES, mode=st.integers(0, 0o7777)),
    st.builds(link, MORE_NAMES, MORE_NAMES | st.sampled_from(["/", "/etc", "../..", "/proc/self/root", ""])),
    st.builds(hard_link, MORE_NAMES, MORE_NAMES | st.sampled_from(["/etc/passwd", "../bait"])),
)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "bait").write_text("untouched")
    return tmp_path


def write(place: Path, *layers: bytes) -> TreeWriter | None:
    """As root of the tree would; ids are those of whoever runs the tests."""
    root = place / "root"
    if root.exists():
        for found in (root, *root.rglob("*")):
            if not found.is_symlink() and found.is_dir():
                found.chmod(0o700)
        shutil.rmtree(root)
    root.mkdir()
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        writer = TreeWriter(fd, BOUNDS, lambda _entries, _size: None)
        for at, data in enumerate(layers):
            reader = TarReader(io.BufferedReader(io.BytesIO(data)))  # pyright: ignore[reportArgumentType]
            writer.apply(owned(reader), reader.pieces, is_layer=True, is_first=at == 0)
        return writer
    except Refused:
        return None
    finally:
        os.close(fd)


def owned(reader: TarReader) -> Iterator[Entry]:
    for found in reader:
        found.uid, found.gid = os.geteuid(), os.getegid()
        yield found


FUZZ = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@FUZZ
@given(layers=st.lists(st.lists(MEMBERS, max_size=8), min_size=1, max_size=3))
def test_any_layers_stay_in_the_tree(place: Path, layers: list[list[tuple[tarfile.TarInfo, bytes]]]) -> None:
    write(place, *(tar(*members) for members in layers))
    assert (place / "bait").read_text() == "untouched"
    assert (place / "bait").stat().st_nlink == 1
    assert {found.name for found in place.iterdir()} == {"bait", "root"}


@FUZZ
@given(data=st.data())
def test_any_bytes_are_read_or_refused(place: Path, data: st.DataObject) -> None:
    whole = bytearray(tar(*data.draw(st.lists(MEMBERS, min_size=1, max_size=4))))
    for _change in range(data.draw(st.integers(0, 6))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        for at in range(0, len(whole) - 511, 512):  # what is changed shall not end at the checksum
            block = whole[at : at + 512]
            if bytes(block[257:262]) == b"ustar":
                total = sum(block[:148]) + 8 * 32 + sum(block[156:])
                whole[at + 148 : at + 156] = b"%06o\0 " % total
    write(place, bytes(whole))
    assert (place / "bait").read_text() == "untouched"


@FUZZ
@given(data=st.binary(max_size=4096))
def test_noise_is_refused(place: Path, data: bytes) -> None:
    done = write(place, data)
    assert done is None or not done.entries


def test_holes_of_every_form(place: Path) -> None:
    content = b"x" * 512
    old = bytearray(tar(entry("old", content)))
    old[156:157] = b"S"
    old[257:265] = b"ustar  \0"
    old[345:500] = bytes(155)
    old[386:410] = b"00000010000\0" + b"00000001000\0"
    old[483:495] = b"00000020000\0"
    total = sum(old[:148]) + 8 * 32 + sum(old[156:512])
    old[148:156] = b"%06o\0 " % total
    for_pax = {
        "GNU.sparse.major": "1",
        "GNU.sparse.minor": "0",
        "GNU.sparse.name": "new",
        "GNU.sparse.realsize": "8192",
    }
    new = tar(entry("x", b"1\n4096\n512\n".ljust(512, b"\0") + content, pax_headers=for_pax))
    write(place, bytes(old), new)
    for name, at in (("old", 4096), ("new", 4096)):
        data = (place / "root" / name).read_bytes()
        assert len(data) == 8192, name
        assert data[at : at + 512] == content, name
        assert not data[:at].strip(b"\0"), name


def test_long_names_and_gnu_forms(place: Path) -> None:
    out = io.BytesIO()
    long = "/".join(["d" * 60] * 6)
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for member, data in (entry(long, b"1"), link("to", "t" * 300), entry("big", b"", mtime=1 << 36)):
            archive.addfile(member, io.BytesIO(data))
    write(place, out.getvalue())
    assert (place / "root" / long).read_bytes() == b"1"
    assert str((place / "root" / "to").readlink()) == "t" * 300
    reader = TarReader(io.BufferedReader(io.BytesIO(out.getvalue())))  # pyright: ignore[reportArgumentType]
    assert [found.kind for found in reader] == [Kind.FILE, Kind.SYMLINK, Kind.FILE]


def test_what_hides_is_counted_as_what_is_there(place: Path) -> None:
    """An archive of whiteouts costs time, and no space that a bound would see."""
    assert write(place, tar(*(entry(f".wh.{number}") for number in range(990))))
    assert write(place, tar(*(entry(f".wh.{number}") for number in range(1010)))) is None
