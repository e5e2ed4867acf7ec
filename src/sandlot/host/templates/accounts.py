"""The template's users and groups: every system id of the machine, none of its people, and one user of our own.

All system ids are needed: files in the template belong to them, and dpkg refuses to run when its override list names
a group that does not exist.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

SYSTEM_ID_MAX: Final = 999
NOBODY_ID: Final = 65534
USER_NAME: Final = "user"
USER_ID: Final = 1000
USER_HOME: Final = "/home/user"
LOGIN_SHELL: Final = "/bin/bash"


@dataclass(frozen=True, slots=True)
class Account:
    name: str
    uid: int
    gid: int
    about: str
    home: str
    shell: str


@dataclass(frozen=True, slots=True)
class Group:
    name: str
    gid: int
    members: tuple[str, ...]


def accounts_from(passwd: str) -> tuple[Account, ...]:
    """Root, the machine's system accounts in their order, then `user`."""
    kept = [Account("root", 0, 0, "root", "/root", LOGIN_SHELL)]
    for fields in _rows(passwd, 7):
        name, _password, uid, gid, about, home, shell = fields
        if name not in {"root", USER_NAME} and _is_system(uid) and gid.isdecimal():
            kept.append(Account(name, int(uid), int(gid), about, home, shell))
    return (*kept, Account(USER_NAME, USER_ID, USER_ID, "", USER_HOME, LOGIN_SHELL))


def groups_from(group: str, accounts: Iterable[Account]) -> tuple[Group, ...]:
    """Root's group, the machine's system groups with only kept accounts as members, then the group of `user`."""
    names = {account.name for account in accounts}
    kept = [Group("root", 0, ())]
    for name, _password, gid, members in _rows(group, 4):
        if name not in {"root", USER_NAME} and _is_system(gid):
            kept.append(Group(name, int(gid), tuple(member for member in members.split(",") if member in names)))
    return (*kept, Group(USER_NAME, USER_ID, ()))


def passwd_text(accounts: Iterable[Account]) -> str:
    return "".join(f"{a.name}:x:{a.uid}:{a.gid}:{a.about}:{a.home}:{a.shell}\n" for a in accounts)


def group_text(groups: Iterable[Group]) -> str:
    return "".join(f"{g.name}:x:{g.gid}:{','.join(g.members)}\n" for g in groups)


def shadow_text(accounts: Iterable[Account]) -> str:
    """Every password locked. No day of change either: passwords that nobody has do not age."""
    return "".join(f"{account.name}:*:::::::\n" for account in accounts)


def gshadow_text(groups: Iterable[Group]) -> str:
    return "".join(f"{group.name}:*::{','.join(group.members)}\n" for group in groups)


def statoverride_text(statoverride: str, accounts: Iterable[Account], groups: Iterable[Group]) -> str:
    """dpkg's override list without the lines whose owner the template does not have."""
    users = {account.name for account in accounts}
    owners = {group.name for group in groups}
    kept: list[str] = []
    for line in statoverride.splitlines():
        words = line.split(maxsplit=3)
        if len(words) == 4 and _known(words[0], users) and _known(words[1], owners):
            kept.append(f"{line}\n")
    return "".join(kept)


def _known(owner: str, names: set[str]) -> bool:
    return owner.startswith("#") or owner in names


def _rows(text: str, width: int) -> Iterable[list[str]]:
    for line in text.splitlines():
        fields = line.split(":")
        if len(fields) == width and fields[0] and not fields[0].startswith(("#", "+", "-")):
            yield fields


def _is_system(number: str) -> bool:
    return number.isdecimal() and (int(number) <= SYSTEM_ID_MAX or int(number) == NOBODY_ID)
