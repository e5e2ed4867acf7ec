"""Who a name means: the rules of `guest/src/users.c`, for text that nobody can trust."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.host.accounts import Account, find_account

PASSWD = b"""root:x:0:0:root:/root:/bin/bash
daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin
user:x:1000:1000:A User,,,:/home/user:/bin/bash
other:x:1001:50::/srv:/bin/sh
"""
GROUP = b"""root:x:0:
sudo:x:27:user,other
staff:x:50:other
user:x:1000:user
team:x:4242:someone,user
"""

CASES: dict[str, tuple[str, Account | None]] = {
    "name": ("user", Account(1000, 1000, (1000, 27, 4242))),
    "root": ("root", Account(0, 0, (0,))),
    "own group in the list": ("other", Account(1001, 50, (50, 27))),
    "number of a known one": ("1000", Account(1000, 1000, (1000, 27, 4242))),
    "number with zeros": ("0001000", Account(1000, 1000, (1000, 27, 4242))),
    "number of nobody": ("4000", Account(4000, 4000, (4000,))),
    "number and group": ("1000:50", Account(1000, 50, (50, 27, 1000, 4242))),
    "unknown number and group": ("7:8", Account(7, 8, (8,))),
    "last number": ("65535:65535", Account(65535, 65535, (65535,))),
    "unknown name": ("nobody", None),
    "name and group": ("user:50", None),
    "number and name": ("1000:staff", None),
    "number and nothing": ("1000:", None),
    "nothing and number": (":50", None),
    "nothing": ("", None),
    "colon": (":", None),
    "three numbers": ("1:2:3", None),
    "negative": ("-1", None),
    "signed": ("+1", None),
    "space": (" 1", None),
    "out of the range": ("65536", None),
    "group out of the range": ("1:65536", None),
    "wraps at 32 bits": ("4294967296", None),
    "last of 32 bits": ("4294967295", None),
    "wraps at 64 bits": ("18446744073709551616", None),
    "digits of another script": ("\u0661", None),
    "superscript": ("²", None),
    "hexadecimal": ("0x0", None),
    "part of a line": ("user:x", None),
    "line end": ("user\n", None),
    "not UTF-8": ("\udcff", None),
    "longest": ("n" * 63, None),
    "too long": ("0" * 64, None),
}


@pytest.mark.parametrize("who", CASES)
def test_names_and_numbers(who: str) -> None:
    asked, expected = CASES[who]
    assert find_account(asked, PASSWD, GROUP) == expected


LINES: dict[str, tuple[bytes, Account | None]] = {
    "plain": (b"user:x:5:6:::", Account(5, 6, (6,))),
    "first of two": (b"user:x:5:6:::\nuser:x:0:0:::", Account(5, 6, (6,))),
    "bad before good": (b"user:x:x:6:::\nuser:x:5:6:::", Account(5, 6, (6,))),
    "six fields": (b"user:x:5:6::", None),
    "more fields": (b"user:x:5:6::::::", Account(5, 6, (6,))),
    "uid too large": (b"user:x:65536:6:::", None),
    "gid too large": (b"user:x:5:65536:::", None),
    "uid that wraps": (b"user:x:4294967296:6:::", None),
    "negative uid": (b"user:x:-1:6:::", None),
    "no uid": (b"user:x::6:::", None),
    "long uid": (b"user:x:00000000005:6:::", None),
    "space in uid": (b"user:x: 5:6:::", None),
    "spaces before": (b" user:x:5:6:::", None),
    "return": (b"user:x:5:6:::\r\n", Account(5, 6, (6,))),
    "end by a zero byte": (b"other:x:1:1:::\n\0\nuser:x:5:6:::", None),
    "zero byte in the line": (b"user:x:5:6:\0::\nuser:x:7:8:::", None),
    "zero byte after": (b"user:x:5:6:::\0", Account(5, 6, (6,))),
    "empty": (b"", None),
    "empty lines": (b"\n\n\nuser:x:5:6:::\n\n", Account(5, 6, (6,))),
    "name that begins alike": (b"user2:x:1:1:::\nuse:x:2:2:::", None),
}


@pytest.mark.parametrize("line", LINES)
def test_lines(line: str) -> None:
    text, expected = LINES[line]
    assert find_account("user", text, b"") == expected


def test_a_group_without_members_is_not_for_those_without_a_name() -> None:
    assert find_account("5", b":x:5:6:::", b"root:x:0:\nsudo:x:27:,\n") == Account(5, 6, (6,))


def test_of_long_names_the_beginning_counts() -> None:
    """The guest keeps 63 bytes, and looks for those in the groups."""
    name = b"n" * 80
    passwd = name + b":x:5:6:::"
    assert find_account("5", passwd, b"g:x:7:" + name[:63]) == Account(5, 6, (6, 7))
    assert find_account("5", passwd, b"g:x:7:" + name) == Account(5, 6, (6,))
    assert find_account(name.decode(), passwd, b"") is None
    assert find_account("n" * 63, b"n" * 63 + b":x:5:6:::", b"") == Account(5, 6, (6,))


def test_groups_are_limited() -> None:
    group = b"".join(b"g:x:%d:user\n" % number for number in range(100, 400))
    found = find_account("user", b"user:x:5:6:::", group)
    assert found is not None
    assert found.groups == (6, *range(100, 163))


def test_groups_out_of_the_range_do_not_count() -> None:
    group = b"a:x:65536:user\nb:x:4294967295:user\nc:x:-1:user\nd:x::user\ne:x:7:user,user\nf:x:8\n"
    assert find_account("user", b"user:x:5:6:::", group) == Account(5, 6, (6, 7))


fields = st.sampled_from(
    [b"user", b"root", b"x", b"0", b"5", b"65535", b"65536", b"4294967295", b"", b"\0", b",", b"\xff"]
)
lines = st.lists(fields, max_size=9).map(b":".join)
texts = st.one_of(st.binary(max_size=300), st.lists(lines, max_size=8).map(b"\n".join))
names = st.one_of(
    st.sampled_from(["user", "root", "5", "5:5", "65535", ""]),
    st.binary(max_size=70).map(lambda name: name.decode("utf-8", "surrogateescape")),
)


@given(names, texts, texts)
def test_no_text_makes_an_id_outside_of_the_range(who: str, passwd: bytes, group: bytes) -> None:
    found = find_account(who, passwd, group)
    if found is not None:
        assert all(0 <= number <= 65535 for number in (found.uid, found.gid, *found.groups))
        assert found.groups[0] == found.gid
        assert found.gid not in found.groups[1:]
        assert len(found.groups) <= 64


@given(texts, texts)
def test_a_number_is_always_someone(passwd: bytes, group: bytes) -> None:
    found = find_account("5:5", passwd, group)
    assert found is not None
    assert (found.uid, found.gid) == (5, 5)


@given(texts, texts, texts)
def test_who_comes_first_in_the_list_is_meant(before: bytes, after: bytes, group: bytes) -> None:
    passwd = b"user:x:5:6:::\n" + after
    assert find_account("user", passwd, group) == find_account("user", b"user:x:5:6:::", group)
    found = find_account("user", before, group)
    if found is not None:
        assert find_account("user", before + b"\n" + passwd, group) == found
