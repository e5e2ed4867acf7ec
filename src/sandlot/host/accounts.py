"""Who a name means inside a session: its own /etc/passwd and /etc/group, read as the hostile text they are.

The same rules as `guest/src/users.c`, so that a file of the host and a file of a command have the same owner."""

from collections.abc import Iterable
from dataclasses import dataclass

TEXT_BYTES_MAX = 256 * 1024
_ID_MAX = 65535
_GROUPS_MAX = 64
_NAME_BYTES_MAX = 63  # of what is longer, the guest knows this much


@dataclass(frozen=True, slots=True)
class Account:
    """In the session's own numbers."""

    uid: int
    gid: int
    groups: tuple[int, ...]


def find_account(who: str, passwd: bytes, group: bytes) -> Account | None:
    """`who` is a name, a number or two numbers with a colon. None: nobody has that name."""
    asked = who.encode("utf-8", "surrogateescape")
    if len(asked) > _NAME_BYTES_MAX:
        return None
    name, colon, group_text = asked.partition(b":")
    uid = _number(name)
    gid = _number(group_text) if colon else None
    if colon and (uid is None or gid is None):
        return None
    found = _account(name, uid, passwd)
    if found is None:
        if uid is None:
            return None
        found = (name, uid, uid)
    own_name, own_uid, own_gid = found
    if gid is None:
        gid = own_gid
    return Account(own_uid, gid, (gid, *_groups(own_name[:_NAME_BYTES_MAX], gid, group)))


def find_group(who: str, group: bytes) -> int | None:
    """`who` is a name or a number. None: no group has that name."""
    asked = who.encode("utf-8", "surrogateescape")
    number = _number(asked)
    if number is not None:
        return number
    for line in _lines(group):
        fields = line.split(b":", 3)
        if len(fields) == 4 and fields[0] == asked:
            return _number(fields[2])
    return None


def names(text: bytes) -> dict[int, str]:
    """Who has which number, in either list; the first one that has it."""
    found: dict[int, str] = {}
    for line in _lines(text):
        fields = line.split(b":", 3)
        if len(fields) == 4 and (number := _number(fields[2])) is not None:
            found.setdefault(number, fields[0].decode("utf-8", "surrogateescape"))
    return found


def _lines(text: bytes) -> Iterable[bytes]:
    """To the guest a text ends at its first zero byte."""
    return filter(None, text.partition(b"\0")[0].split(b"\n"))


def _account(name: bytes, uid: int | None, passwd: bytes) -> tuple[bytes, int, int] | None:
    for line in _lines(passwd):
        fields = line.split(b":", 6)
        if len(fields) < 7:
            continue
        found, gid = _number(fields[2]), _number(fields[3])
        if found is not None and gid is not None and (fields[0] == name if uid is None else found == uid):
            return fields[0], found, gid
    return None


def _groups(name: bytes, own: int, group: bytes) -> list[int]:
    found: list[int] = []
    for line in _lines(group) if name else ():  # a group without members is not a group of the nameless
        fields = line.split(b":", 6)
        if len(fields) < 4 or (gid := _number(fields[2])) is None or gid == own:
            continue
        if name in fields[3].split(b",") and len(found) < _GROUPS_MAX - 1:
            found.append(gid)
    return found


def _number(digits: bytes) -> int | None:
    if not digits or len(digits) > 10 or not digits.isdigit():
        return None
    value = int(digits)
    return value if value <= _ID_MAX else None
