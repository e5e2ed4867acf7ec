"""The tar format: what we write others read, what others write we read, and what could do harm is refused."""

import io
import random
import tarfile
import tracemalloc

import pytest

from sandlot.model import InvalidArgument, LimitReached, Member, MemberKind, SandlotError, TarReader, limits, tar

FILE, DIRECTORY, SYMLINK = MemberKind.FILE, MemberKind.DIRECTORY, MemberKind.SYMLINK
Read = list[tuple[Member, bytes]]


def read(archive: bytes, piece: int = 1 << 20) -> Read:
    reader, found = TarReader(), Read()
    for at in range(0, len(archive), piece):
        for item in reader.feed(archive[at : at + piece]):
            if isinstance(item, Member):
                found.append((item, b""))
            else:
                found[-1] = found[-1][0], found[-1][1] + bytes(item)
    reader.finish()
    return found


def written(*members: tuple[str, MemberKind, bytes, str]) -> bytes:
    archive = b""
    for name, kind, content, target in members:
        archive += tar.header(name, kind, 0o640, len(content), 1_700_000_000, target)
        archive += content + tar.padding(len(content))
    return archive + tar.END


MEMBERS = (
    ("d", DIRECTORY, b"", ""),
    ("d/f", FILE, b"x" * 1000, ""),
    ("d/" + "n" * 99 + "/" + "m" * 200, FILE, b"deep", ""),
    ("d/n\udcff\udcfe", FILE, b"", ""),
    ("link", SYMLINK, b"", "../" * 50 + "t" * 60),
    ("é", FILE, b"\0" * 513, ""),
)


@pytest.mark.parametrize("piece", [1, 7, 512, 1000, 1 << 20])
def test_what_is_written_is_read(piece: int) -> None:
    found = read(written(*MEMBERS), piece)
    assert [(m.path, m.kind, content, m.target) for m, content in found] == [*MEMBERS]
    assert {(m.mode, m.modified) for m, _ in found} == {(0o640, 1_700_000_000)}


def test_others_read_what_we_write() -> None:
    with tarfile.open(fileobj=io.BytesIO(written(*MEMBERS))) as archive:
        assert [m.name for m in archive] == [name for name, *_ in MEMBERS]
        found = archive.extractfile("d/f")
        assert found
        assert found.read() == b"x" * 1000
        assert archive.getmember("link").linkname == MEMBERS[4][3]


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_we_read_what_others_write(form: int) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
        names = ["a", "d/b", "x" * 90 + "/" + "y" * 80] + (["z" * 300] if form != tarfile.USTAR_FORMAT else [])
        for name in names:
            info = tarfile.TarInfo(name)
            info.size, info.mode, info.mtime = 600, 0o4755, 12
            archive.addfile(info, io.BytesIO(b"c" * 600))
    found = read(buffer.getvalue())
    assert [m.path for m, _ in found] == names
    assert all(content == b"c" * 600 and m.mode == 0o755 and m.modified == 12 for m, content in found)


def raw(name: bytes = b"f", flag: bytes = b"0", size: int = 0, target: bytes = b"") -> bytes:
    return tar._block(name, flag, 0o644, size, 0, target)  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize(
    ("archive", "told"),
    [
        (raw(b"../f"), "leads upwards"),
        (raw(b"a/../../f"), "leads upwards"),
        (raw(b"/etc/passwd"), "begins at the root"),
        (raw(b"dev", b"3"), "a device"),
        (raw(b"dev", b"4"), "a device"),
        (raw(b"pipe", b"6"), "a pipe"),
        (raw(b"sparse", b"S"), "a sparse file"),
        (raw(b"odd", b"Z"), "not known"),
        (raw(b"hard", b"1", target=b"../f"), "leads upwards"),
        (raw(b"hard", b"1", target=b"/etc/passwd"), "begins at the root"),
        (raw(b"link", b"2"), "leads nowhere"),
        (raw(b"d", b"5", size=600), "has a content"),
        (raw(b".", b"0"), "without a name"),
        (raw(b"x", b"x", size=10) + b"9999 path=".ljust(512, b"\0"), "cannot be read"),
        (raw(b"x", b"x", size=22) + b"22 GNU.sparse.major=1\n".ljust(512, b"\0"), "sparse"),
        (b"\x1f\x8b" + bytes(600), "compressed"),
        (b"hello" * 200, "no tar archive"),
        (raw()[:148] + b"0000000\0" + raw()[156:], "no tar archive"),
        (raw()[:124] + b"-0000000001\0" + raw()[136:], "no tar archive"),
        (tar.END + raw(), "behind the end"),
        (bytes(512) + raw(), "behind its end"),
    ],
)
def test_what_is_refused(archive: bytes, told: str) -> None:
    with pytest.raises(InvalidArgument, match=told) as caught:
        read(archive + bytes(1024))
    assert caught.value.next_step or "leads nowhere" in told


def test_a_long_name_cannot_lead_out_either() -> None:
    for name in (b"../" * 40 + b"x", b"/" + b"y" * 200):
        record = b" path=" + name + b"\n"
        record = b"%d" % (len(record) + 3) + record
        archive = raw(b"x", b"x", len(record)) + record + tar.padding(len(record)) + raw()
        with pytest.raises(InvalidArgument):
            read(archive)
        long = raw(b"././@LongLink", b"L", len(name) + 1) + name + b"\0" + tar.padding(len(name) + 1) + raw()
        with pytest.raises(InvalidArgument):
            read(long)


def test_an_archive_that_is_cut_off_is_told() -> None:
    whole = written(*MEMBERS)
    for end in (0, 100, 512, 700, len(whole) - 1024, len(whole) - 600):
        with pytest.raises(InvalidArgument, match="ends before its end"):
            read(whole[:end])


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LimitReached, match="tells of a member"):
        read(raw(b"x", b"x", 50 << 20))
    with pytest.raises(InvalidArgument, match="bytes"):
        read(written(("x" * 5000, FILE, b"", "")))
    monkeypatch.setattr(limits, "TREE_ENTRIES_MAX", 100)
    with pytest.raises(LimitReached, match="more than 100 members"):
        read(raw() * 101)


def test_noise_never_leads_out_and_never_breaks_us() -> None:
    """Every archive is read to its end or refused in our own words; what is read stays below the top."""
    seed = random.Random(7)
    whole = written(*MEMBERS)
    for _ in range(3000):
        noise = bytearray(whole)
        for _change in range(seed.randrange(1, 8)):
            noise[seed.randrange(len(noise))] = seed.randrange(256)
        block = seed.randrange(len(noise) // 512) * 512
        head = noise[block : block + 512]  # with a sum that is right, so that more than the sum is tried
        head[148:156] = b" " * 8
        noise[block + 148 : block + 156] = b"%06o\0 " % sum(head)
        try:
            found = read(bytes(noise), seed.choice([100, 512, 1 << 20]))
        except SandlotError:
            continue
        for member, _content in found:
            assert not {"", ".", ".."} & set(member.parts)
            assert not any("/" in part for part in member.parts)


def test_what_is_told_before_a_member_is_not_collected() -> None:
    """Headers may come without an end, each with another word that means nothing."""
    reader = TarReader()
    tracemalloc.start()
    try:
        for number in range(300):
            told = b"".join(tar._record(b"word-%d-%d" % (number, n), b"x" * 1000) for n in range(64))  # pyright: ignore[reportPrivateUsage] - no writer makes such headers
            block = tar._block(b"long", b"x", 0o644, len(told), 0)  # pyright: ignore[reportPrivateUsage] - the same
            assert not list(reader.feed(block + told + tar.padding(len(told))))
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 4 << 20, "of 20 MB that came"
