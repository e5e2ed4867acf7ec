"""The files and directories of a template that owe nothing to the machine, or only its list of system ids."""

import os
import stat
from pathlib import Path
from typing import Final

from sandlot.host.templates.accounts import (
    USER_HOME,
    USER_ID,
    USER_NAME,
    Account,
    Group,
    group_text,
    gshadow_text,
    passwd_text,
    shadow_text,
)
from sandlot.host.templates.tree import Tree

WORKSPACE: Final = "workspace"
_DIRECTORIES: Final = (
    ("boot", 0o755),
    ("dev", 0o555),
    ("etc", 0o755),
    ("etc/apt/apt.conf.d", 0o755),
    ("etc/apt/auth.conf.d", 0o755),
    ("etc/apt/preferences.d", 0o755),
    ("etc/apt/sources.list.d", 0o755),
    ("etc/profile.d", 0o755),
    ("home", 0o755),
    ("media", 0o755),
    ("mnt", 0o755),
    ("opt", 0o755),
    ("proc", 0o555),
    ("root", 0o700),
    ("run", 0o755),
    ("run/lock", 0o1777),
    ("srv", 0o755),
    ("sys", 0o555),
    ("tmp", 0o1777),
    ("usr/local", 0o755),
    ("usr/local/bin", 0o755),
    ("usr/local/etc", 0o755),
    ("usr/local/games", 0o755),
    ("usr/local/include", 0o755),
    ("usr/local/lib", 0o755),
    ("usr/local/sbin", 0o755),
    ("usr/local/share/man", 0o755),
    ("usr/local/src", 0o755),
    ("var/backups", 0o755),
    ("var/cache", 0o755),
    ("var/lib", 0o755),
    ("var/log", 0o755),
    ("var/opt", 0o755),
    ("var/spool", 0o755),
    ("var/tmp", 0o1777),
)
_LINKS: Final = (
    ("etc/mtab", "../proc/self/mounts"),
    ("usr/local/man", "share/man"),
    ("var/lock", "/run/lock"),
    ("var/run", "/run"),
    ("var/spool/mail", "../mail"),
)
_FILES: Final = (
    ("etc/environment", ""),
    ("etc/hostname", "sandbox\n"),
    (
        "etc/hosts",
        "127.0.0.1\tlocalhost\n127.0.1.1\tsandbox\n::1\tlocalhost ip6-localhost ip6-loopback\n"
        + "ff02::1\tip6-allnodes\nff02::2\tip6-allrouters\n",
    ),
    # Empty, not absent: absent would tell systemd's tools that this is a first boot.
    ("etc/machine-id", ""),
    (
        # The machine's own may name a directory service that nobody answers for in here.
        "etc/nsswitch.conf",
        "passwd: files\ngroup: files\nshadow: files\ngshadow: files\nhosts: files dns\nnetworks: files\n"
        + "protocols: files\nservices: files\nethers: files\nrpc: files\n",
    ),
    ("etc/resolv.conf", ""),
    ("etc/subgid", ""),
    ("etc/subuid", ""),
)
_PROFILE: Final = """\
if [ "$(id -u)" -eq 0 ]; then
  PATH="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
else
  PATH="/usr/local/bin:/usr/bin:/bin:/usr/local/games:/usr/games"
fi
export PATH
"""
_SUDOERS: Final = """\
Defaults env_reset
Defaults secure_path="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
root ALL=(ALL:ALL) ALL
@includedir /etc/sudoers.d
"""


def write_directories(tree: Tree, groups: tuple[Group, ...]) -> None:
    for path, mode in _DIRECTORIES:
        tree.directory(path, mode)
    tree.directory("var/mail", 0o2775, gid=_gid(groups, "mail"))
    tree.directory("var/local", 0o2775, gid=_gid(groups, "staff"))
    tree.directory(WORKSPACE, 0o755, USER_ID, USER_ID)
    for path, target in _LINKS:
        tree.symlink(path, target)


def write_accounts(tree: Tree, accounts: tuple[Account, ...], groups: tuple[Group, ...]) -> None:
    shadow = _gid(groups, "shadow")
    tree.file("etc/passwd", passwd_text(accounts).encode())
    tree.file("etc/group", group_text(groups).encode())
    tree.file("etc/shadow", shadow_text(accounts).encode(), 0o640, gid=shadow)
    tree.file("etc/gshadow", gshadow_text(groups).encode(), 0o640, gid=shadow)


def write_settings(machine: Path, tree: Tree) -> None:
    for path, text in _FILES:
        tree.file(path, text.encode(), 0o444 if path == "etc/machine-id" else 0o644)
    # The profile of the package, never the machine's /etc/profile: people export tokens there.
    stock = machine / "usr/share/base-files"
    tree.file("etc/profile", _stock(stock / "profile") or _PROFILE.encode())
    for name in (".bashrc", ".profile"):
        if data := _stock(stock / f"dot{name}"):
            tree.file(f"root/{name}", data)
    if (machine / "usr/bin/sudo").is_file():
        tree.file("etc/sudoers", _SUDOERS.encode(), 0o440)
        tree.directory("etc/sudoers.d", 0o750)
        tree.file(f"etc/sudoers.d/{USER_NAME}", f"{USER_NAME} ALL=(ALL:ALL) NOPASSWD: ALL\n".encode(), 0o440)


def write_home(tree: Tree) -> None:
    """The home of `user`, with what the template's own /etc/skel holds."""
    home = USER_HOME.lstrip("/")
    tree.directory(home, 0o755, USER_ID, USER_ID)
    skeleton = tree.root / "etc/skel"
    for name in sorted(os.listdir(skeleton)) if skeleton.is_dir() else ():
        file = skeleton / name
        if stat.S_ISREG(file.lstat().st_mode):
            tree.file(f"{home}/{name}", file.read_bytes(), 0o644, USER_ID, USER_ID)


def _stock(file: Path) -> bytes:
    return file.read_bytes() if file.is_file() else b""


def _gid(groups: tuple[Group, ...], name: str) -> int:
    return next((group.gid for group in groups if group.name == name), 0)
