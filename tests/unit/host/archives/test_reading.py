"""A file that says it is an export is read whole or refused, whatever it holds. Nothing else comes out of it."""

import gzip
import io
import itertools
import json
import random
import stat
import struct
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandlot.host.archives import writing
from sandlot.host.archives.entries import Entry, Kind, attribute_of, attribute_on_disk, check_owner
from sandlot.host.archives.reading import ArchiveReader, Budget
from sandlot.host.archives.writing import MANIFEST, ArchiveWriter
from sandlot.host.storage.canonical import CANONICAL_ID
from sandlot.model import InvalidArgument, LimitReached, limits

SECTION = "now"
TOP = Entry("/", Kind.DIRECTORY, 0o755)


def write(*entries: Entry) -> bytes:
    writer = ArchiveWriter()
    parts = (writer.document(MANIFEST, {"format": "x"}), writer.section(SECTION, entries), writer.end())
    return b"".join(itertools.chain(*parts))


def reader_of(data: bytes, size: int = 997) -> ArchiveReader:
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    return ArchiveReader(lambda: pieces.pop(0) if pieces else b"")


def read(data: bytes, budget: Budget | None = None) -> list[tuple[Entry, bytes]]:
    reader = reader_of(data)
    reader.manifest()
    reader.budget = budget
    found = [(entry, b"".join(entry.content or ())) for entry in reader.section(SECTION)]
    reader.end()
    return found


def file(path: str, *pieces: bytes) -> Entry:
    size = sum(map(len, pieces))
    extents = ((0, size),) if size else ()
    return Entry(path, Kind.FILE, 0o644, size=size, extents=extents, content=iter(pieces))


def test_what_was_written_is_read() -> None:
    odd = "/" + "d" * 200 + "/\udcff\n" + "n" * 100
    attributes = {"user.x": b"\x00\xff=\n", "user.empty": b""}
    hole = Entry("/hole", Kind.FILE, 0o600, size=1 << 40, extents=((5, 3), (1 << 39, 2)), content=iter([b"abc", b"de"]))
    entries = (
        TOP,
        file("/a", b"one", b"two"),
        Entry("/b", Kind.LINK, target="/a"),
        Entry("/c", Kind.SYMLINK, 0o777, 7, 8, -1_500_000_000, target="../../etc/passwd"),
        Entry("/gone", Kind.REMOVED),
        hole,
        Entry("/kept", Kind.KEPT, 0o4755, 65535, 65535, 10**18 + 1, attributes),
        Entry("/pipe", Kind.PIPE, 0o600),
        Entry("/socket", Kind.SOCKET, 0o600),
    )
    found = read(write(*entries, Entry("/" + "z", Kind.DIRECTORY)))
    told = {entry.path: (entry, content) for entry, content in found}
    assert list(told) == [entry.path for entry in entries] + ["/z"]
    assert told["/a"][1] == b"onetwo"
    assert (told["/hole"][0].extents, told["/hole"][0].size, told["/hole"][1]) == (hole.extents, 1 << 40, b"abcde")
    for entry in entries:
        if entry.content is None:
            assert told[entry.path][0] == entry
    assert read(write(TOP, file(odd, b"x")))[1][0].path == odd


def test_a_file_that_was_cut_or_changed_is_refused() -> None:
    data = write(TOP, file("/a", b"one" * 100), Entry("/b", Kind.DIRECTORY, 0o755))
    for end in range(0, len(data), 7):
        with pytest.raises(InvalidArgument, match="no whole export"):
            read(data[:end])
    unharmed: list[int] = []
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 0x10
        try:
            read(bytes(changed))
            unharmed.append(at)
        except InvalidArgument:
            continue
        # When it was packed and by whom is of no account, and some bits mean nothing: what is in it is the same.
        assert gzip.decompress(changed) == gzip.decompress(data)
    assert len(unharmed) < len(data) // 5
    for behind in (b"\0", b"more", data):
        with pytest.raises(InvalidArgument, match="behind its end"):
            read(data + behind)


def test_a_changed_tar_is_refused_although_it_is_packed_well() -> None:
    """Whoever packs it again has a right checksum, and no right digest."""
    plain = gzip.decompress(write(TOP, file("/a", b"one" * 200), file("/b", b"two" * 200)))
    rng = random.Random(1)
    for at in rng.sample(range(len(plain)), 400):
        changed = bytearray(plain)
        changed[at] ^= 1 << rng.randrange(8)
        with pytest.raises((InvalidArgument, LimitReached)):
            read(gzip.compress(bytes(changed), 1))


@pytest.mark.parametrize(
    "path",
    [
        "now/root/../x", "now/root/./x", "now/root//x", "now/root/x/", "now/rootx", "now/x", "now/root/a\0b",
        "now/root/" + "n" * 5000, "now/removed/../../x",
    ],
)  # fmt: skip
def test_a_name_that_leads_elsewhere_is_refused(path: str) -> None:
    writer = ArchiveWriter()

    def forged() -> Iterator[bytes]:
        yield from writer.document(MANIFEST, {})
        yield from writer.section(SECTION, (TOP,))
        yield from writer._member(path.encode(), b"0", {}, (b"",))  # pyright: ignore[reportPrivateUsage]
        yield from writer.end()

    with pytest.raises(InvalidArgument):
        read(b"".join(forged()))


Forge = Callable[[ArchiveWriter], Iterator[bytes]]


def member(path: bytes, kind: bytes, content: bytes = b"", link: bytes = b"", **more: bytes) -> Forge:
    """One that no engine of ours writes."""

    def forge(writer: ArchiveWriter) -> Iterator[bytes]:
        records = {key.replace("__", "."): value for key, value in more.items()}
        return writer._member(path, kind, records, (content,), len(content), link)  # pyright: ignore[reportPrivateUsage]

    return forge


def section(*entries: Entry, name: str = SECTION) -> Forge:
    return lambda writer: writer.section(name, entries)


@pytest.mark.parametrize(
    "forge",
    [
        member(b"now/root/null", b"3"),  # a device
        member(b"now/root/x", b"S"),
        member(b"now/root/x", b"L", b"x" * 600),
        member(b"now/root/x", b"0", SCHILY__xattr__trusted__overlay__redirect=b"/etc"),
        member(b"now/root/x", b"0", SCHILY__xattr__security__selinux=b"x"),
        member(b"now/root/x", b"0", SANDLOT__kind=b"device"),
        member(b"now/root/x", b"5", b"content"),
        member(b"now/root/x", b"1", link=b"/etc/passwd"),
        member(b"now/root/x", b"1", link=b"now/root/../../etc/passwd"),
        member(b"now/root/x", b"0", size=b"9" * 30),
        member(b"now/root/x", b"0", mtime=b"9" * 30),
        member(b"now/root/x", b"0", user__x=b"y" * (3 << 20)),
        member(b"now/root/x", b"0", b"9999999\n1\n", GNU__sparse__realsize=b"5"),
        member(b"now/root/x", b"0", b"1\n3\n9\n".ljust(512), GNU__sparse__realsize=b"5"),
        section(Entry("/b", Kind.PIPE), Entry("/a", Kind.PIPE)),
        section(Entry("/a", Kind.PIPE), Entry("/a", Kind.SYMLINK, target="b")),
        section(TOP, name="points/0009"),
    ],
)
def test_what_no_session_has_is_refused(forge: Forge) -> None:
    writer = ArchiveWriter()
    parts = (writer.document(MANIFEST, {}), writer.section(SECTION, (TOP,)), forge(writer), writer.end())
    with pytest.raises(InvalidArgument):
        read(b"".join(itertools.chain(*parts)))


def test_more_than_there_is_room_for_is_refused_and_takes_no_memory() -> None:
    def zeros() -> Iterator[bytes]:
        while True:
            yield bytes(1 << 20)

    size = 64 << 20
    bomb = Entry("/bomb", Kind.FILE, 0o644, size=size, extents=((0, size),), content=itertools.islice(zeros(), 64))
    data = write(TOP, bomb)
    assert len(data) < size // 100
    with pytest.raises(LimitReached, match="more than there is room for"):
        read(data, Budget(1 << 20, 1000))
    many = write(TOP, *(Entry(f"/{number:06d}", Kind.PIPE) for number in range(1000)))
    with pytest.raises(LimitReached, match="more files"):
        read(many, Budget(1 << 20, 100))


def test_records_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "IMPORT_RECORDS_BYTES_MAX", 1000)
    writer = ArchiveWriter()
    data = b"".join(itertools.chain(writer.document(MANIFEST, {"x": "y" * 2000}), writer.end()))
    with pytest.raises(InvalidArgument, match="too large"):
        reader_of(data).manifest()
    for text in (b"[" * 100_000, b"[]", b"{", b'{"a": NaN'):
        writer = ArchiveWriter()
        data = b"".join(writer._member(MANIFEST.encode(), b"0", {}, (text[:900],)))  # pyright: ignore
        with pytest.raises(InvalidArgument):
            reader_of(data + b"".join(writer.end())).manifest()


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=3000))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for packed in (data, gzip.compress(data, 1)):
        with pytest.raises(InvalidArgument):
            reader_of(packed).manifest()


def test_attributes_name_users_of_the_session_only() -> None:
    two = struct.pack("<IIIII", 0x02000001, 1 << 10, 0, 0, 0)
    on_disk = attribute_on_disk("security.capability", two)
    assert struct.unpack("<IIIIII", on_disk) == (0x03000001, 1 << 10, 0, 0, 0, CANONICAL_ID)
    assert attribute_on_disk("security.capability", attribute_of("security.capability", on_disk)) == on_disk
    name = "system.posix_acl_access"
    told = struct.pack("<I", 2) + struct.pack("<HHI", 2, 7, 5)
    assert struct.unpack("<HHI", attribute_on_disk(name, told)[4:])[2] == CANONICAL_ID + 5
    assert attribute_of(name, attribute_on_disk(name, told)) == told
    with pytest.raises(InvalidArgument):
        attribute_on_disk(name, struct.pack("<I", 2) + struct.pack("<HHI", 2, 7, CANONICAL_ID))
    for value in (b"", b"x", struct.pack("<I", 1), two[:-1]):
        with pytest.raises(InvalidArgument):
            attribute_on_disk("security.capability", value)
        with pytest.raises(InvalidArgument):
            attribute_on_disk(name, value + b"y")
    with pytest.raises(InvalidArgument):
        check_owner(65536)


def unpack_gnu(data: bytes, folder: Path) -> None:
    words = ["tar", "xzf", "-", "--no-same-owner", "-C", str(folder)]
    done = subprocess.run(words, input=data, capture_output=True, check=False, timeout=30)
    assert done.returncode == 0, done.stderr


def unpack_python(data: bytes, folder: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        tar.extraction_filter = getattr(tarfile, "tar_filter", None)  # Python has it from 3.11.4
        tar.extractall(folder)


@pytest.mark.parametrize("unpack", [unpack_gnu, unpack_python])
def test_other_programs_unpack_it(tmp_path: Path, unpack: Callable[[bytes, Path], None]) -> None:
    odd = "d" * 200 + "/\udcff\n" + "n" * 100
    extents = ((4096, 8192), (1 << 20, 3))
    hole = Entry("/hole", Kind.FILE, 0o600, size=(1 << 20) + 3, extents=extents, content=iter([b"x" * 8192, b"end"]))
    data = write(
        TOP,
        file("/a", b"one", b"two"),
        Entry("/b", Kind.LINK, 0o644, target="/a"),
        Entry("/c", Kind.SYMLINK, 0o777, mtime_ns=1_500_000_000, target="a"),
        Entry("/" + "d" * 200, Kind.DIRECTORY, 0o755),
        file("/" + odd, b"x"),
        Entry("/gone", Kind.REMOVED),
        hole,
        Entry("/kept", Kind.KEPT, 0o600, mtime_ns=10**18 + 1, attributes={"user.x": b"\x00\xff=\n"}),
        Entry("/pipe", Kind.PIPE, 0o600),
    )
    unpack(data, tmp_path)
    root = tmp_path / "now" / "root"
    assert ((root / "a").read_bytes(), (root / "a").stat().st_mode & 0o777) == (b"onetwo", 0o644)
    assert (root / "b").samefile(root / "a")
    assert ((root / "c").readlink().name, (root / odd).read_bytes()) == ("a", b"x")
    assert (root / "hole").read_bytes() == bytes(4096) + b"x" * 8192 + bytes((1 << 20) - 12288) + b"end"
    assert (root / "hole").stat().st_blocks * 512 < 1 << 20
    assert ((root / "kept").stat().st_size, (tmp_path / "now" / "removed" / "gone").stat().st_size) == (0, 0)
    assert stat.S_ISFIFO((root / "pipe").stat().st_mode)


def test_other_programs_list_it() -> None:
    data = write(TOP, file("/a", b"one"), Entry("/b", Kind.SYMLINK, target="a"))
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert [member.name for member in tar] == [MANIFEST, "now/root", "now/root/a", "now/root/b", writing.END]
        told = tar.extractfile(writing.END)
        assert told is not None
        assert json.load(told)["members"] == 4
