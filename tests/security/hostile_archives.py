"""What a stranger may put into an archive: names, links, kinds, marks and numbers that mean harm."""

import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tests.archives import entry, folder, hard_link, link
from tests.security.outside import Outside

Members = Sequence[tuple[tarfile.TarInfo, bytes]]
PLANTED = "planted-by-an-archive"  # of what no archive may make but where it was to go
EVIL = b"evil\n"
UP = "../" * 16
ENTRIES_MAX = 300  # in these tests: bounds are small enough to be met
END = bytes(1024)
LARGE = 1 << 60
SIZE, MODE, OWNER, TIME, NAME = slice(124, 136), slice(100, 108), slice(108, 116), slice(136, 148), slice(0, 100)


@dataclass(frozen=True)
class Case:
    name: str
    members: Callable[[Outside], Members] = lambda _out: ()
    spoil: Callable[[bytearray], None] | None = None  # the last header, as it stands in the archive
    is_refused: bool = False  # by every door, not only kept in
    raw: bytes = b""  # in the place of members

    def __str__(self) -> str:
        return self.name

    def archive(self, outside: Outside) -> bytes:
        return (self.raw or pack(self.members(outside), self.spoil)) + END


def pack(members: Members, spoil: Callable[[bytearray], None] | None = None, *, as_export: bool = False) -> bytes:
    """Without the end. `as_export`: no name ends with a slash."""
    data = bytearray()
    for number, (member, content) in enumerate(members, start=1):
        head = bytearray(member.tobuf(tarfile.PAX_FORMAT))
        last = head[-tarfile.BLOCKSIZE :]
        if as_export:
            last[NAME] = last[NAME].rstrip(b"\0").rstrip(b"/").ljust(100, b"\0")
        if spoil is not None and number == len(members):
            spoil(last)
        last[148:156] = b" " * 8
        last[148:156] = b"%06o\0 " % sum(last)
        head[-tarfile.BLOCKSIZE :] = last
        data += head + content + bytes(-len(content) % tarfile.BLOCKSIZE)
    return bytes(data)


def _at(place: slice, value: bytes) -> Callable[[bytearray], None]:
    def spoil(block: bytearray) -> None:
        block[place] = value.ljust(place.stop - place.start, b"\0")

    return spoil


def _binary(value: int) -> bytes:
    """As GNU writes numbers that are large or below zero."""
    return (b"\xff" if value < 0 else b"\x80") + (value % (1 << 88)).to_bytes(11, "big")


def _pax(**headers: str) -> Members:
    named = {name.replace("__", "."): value for name, value in headers.items()}
    return [entry("x", EVIL, pax_headers=named)]


def _device(kind: bytes, **fields: Any) -> Callable[[Outside], Members]:
    return lambda _out: [entry("x", type=kind, **fields), entry("y", EVIL)]


def _one(name: str, **fields: Any) -> Callable[[Outside], Members]:
    return lambda _out: [entry(name, EVIL, **fields)]


def _names() -> Iterator[Case]:
    for steps in (1, 2, 3, 5, 8):
        yield Case(f"a name that climbs {steps}", _one("../" * steps + PLANTED), is_refused=True)
    yield Case("a name that climbs to it", lambda out: [entry(f"{UP}{out.folder}/{PLANTED}", EVIL)], is_refused=True)
    yield Case("a name that climbs behind a directory", _one(f"a/b/../../../../{PLANTED}"), is_refused=True)
    yield Case("an absolute name", lambda out: [entry(f"{out.folder}/{PLANTED}", EVIL)])
    yield Case("a name of two slashes", lambda out: [entry(f"//{out.folder}/{PLANTED}", EVIL)])
    yield Case("a name with backslashes", _one(f"..\\..\\{PLANTED}"))
    yield Case("a name behind a NUL", lambda _out: _pax(path=f"x\0/../../{PLANTED}"))
    yield Case("a name in a header of its own", lambda _out: _pax(path=f"../../../{PLANTED}"), is_refused=True)
    yield Case("a name of 300", _one("n" * 300))
    yield Case("a name of 64 KiB", _one("n/" * 32_000 + "x"), is_refused=True)
    yield Case("a tree of 3000 levels", lambda _out: [folder("/".join("d" * 3000))], is_refused=True)
    for odd in ("a\nb", "-rf", "\x1b[2J", "\udcff", " ", ".sandlot-0123456789abcdef", "~", "$HOME", "%2e%2e"):
        yield Case(f"a name like {odd!a}", _one(odd))
    yield Case("a file that is a directory", _one("x/../x"))
    yield Case("a name that is none", _one("."))


def _links() -> Iterator[Case]:
    yield Case("a file through a link", lambda out: [link("way", str(out.folder)), entry(f"way/{PLANTED}", EVIL)])
    yield Case(
        "a file through a link that climbs",
        lambda out: [link("way", f"{UP}{out.folder}"), entry(f"way/{PLANTED}", EVIL)],
    )
    yield Case(
        "a file through a chain of links",
        lambda out: [link("a", "."), link("a-b", f"a/{UP}{out.folder}"), entry(f"a-b/{PLANTED}", EVIL)],
    )
    yield Case("a file in the place of a link", lambda out: [link("f", str(out.folder / "f")), entry("f", EVIL)])
    yield Case(
        "a directory that becomes a link",
        lambda out: [folder("way"), entry("way/x", b""), link("way", str(out.folder)), entry(f"way/{PLANTED}", EVIL)],
    )
    yield Case(
        "a link that becomes a directory",
        lambda out: [link("way", str(out.folder / "d")), folder("way", mode=0o700), entry(f"way/{PLANTED}", EVIL)],
    )
    yield Case("a circle", lambda _out: [link("a", "b"), link("b", "a"), entry("a/x", EVIL)])
    yield Case(
        "another name of a file outside",
        lambda out: [hard_link("h", f"{UP}{out.folder}/f"), entry("h", EVIL)],
        is_refused=True,
    )
    yield Case("another name of an absolute one", lambda out: [hard_link("h", str(out.folder / "f")), entry("h", EVIL)])
    yield Case(
        "another name through a link",
        lambda out: [link("way", str(out.folder)), hard_link("wayh", "way/f"), entry("wayh", EVIL)],
    )
    yield Case("another name of a link", lambda out: [link("l", str(out.folder / "f")), hard_link("m", "l")])
    yield Case("another name of itself", lambda _out: [hard_link("h", "h")])
    yield Case("a link to nothing", lambda _out: [link("l", ""), entry("l/x", EVIL)])
    yield Case(
        "a link through pid 1", lambda out: [link("l", f"/proc/1/root{out.folder}"), entry(f"l/{PLANTED}", EVIL)]
    )
    yield Case("a link of 100 kB", lambda _out: [link("l", "t/" * 50_000)])


def _kinds() -> Iterator[Case]:
    yield Case("a disk", _device(tarfile.BLKTYPE, devmajor=8, devminor=0))
    yield Case("the memory", _device(tarfile.CHRTYPE, devmajor=1, devminor=1))
    yield Case("a mark of overlay", _device(tarfile.CHRTYPE, devmajor=0, devminor=0))
    yield Case("a pipe", _device(tarfile.FIFOTYPE))
    yield Case("a kind that nobody knows", _device(b"Z"))
    yield Case("a setuid program", _one("setuid", mode=0o6777))
    yield Case("a file of a foreign user", _one("x", uid=4_000_000, gid=4_000_000))
    yield Case("a hidden directory", lambda _out: [entry("etc/.wh..wh..opq"), entry(".wh.etc"), entry(".wh...")])
    for name in ("trusted.overlay.redirect", "trusted.overlay.opaque", "user.overlay.redirect", "security.selinux"):
        yield Case(
            f"an attribute {name}", lambda _out, name=name: _pax(**{f"SCHILY__xattr__{name.replace('.', '__')}": "/"})
        )


def _numbers() -> Iterator[Case]:
    one = _one("x")
    yield Case("a size below zero", one, _at(SIZE, _binary(-512)), is_refused=True)
    yield Case("a size far below zero", one, _at(SIZE, _binary(-(1 << 40))), is_refused=True)
    yield Case("a size with a sign", one, _at(SIZE, b"-0000001000"), is_refused=True)
    yield Case("a size of a zebibyte", one, _at(SIZE, _binary(1 << 70)), is_refused=True)
    yield Case("a size that is told otherwise", lambda _out: _pax(size="99999999"), is_refused=True)
    yield Case("a size that is no number", lambda _out: _pax(size="-1"), is_refused=True)
    yield Case("a mode that is no number", one, _at(MODE, b"rwxrwxr"), is_refused=True)
    yield Case("an owner below zero", one, _at(OWNER, b"\xff" * 8))
    yield Case("a time without an end", one, _at(TIME, _binary((1 << 87) - 1)))
    yield Case("a hole of an exbibyte", lambda _out: _pax(GNU__sparse__map="0,1", GNU__sparse__size=str(LARGE)))
    yield Case(
        "holes in each other",
        lambda _out: _pax(GNU__sparse__map="0,4,2,2", GNU__sparse__size="8", GNU__sparse__major="0"),
    )
    yield Case("holes that are words", lambda _out: _pax(GNU__sparse__major="1", GNU__sparse__realsize="x"))
    yield Case("too many members", lambda _out: [folder(f"d{n:05d}") for n in range(ENTRIES_MAX + 50)])
    yield Case("a header of 2 MiB", lambda _out: _pax(comment="y" * (2 << 20)))


CASES = (*_names(), *_links(), *_kinds(), *_numbers())
