"""The parts of /var that make package tools work in a template: dpkg's database, and the empty places of apt."""

import os
import stat
from pathlib import Path
from typing import Final

from sandlot.host.templates.accounts import Account, Group, statoverride_text
from sandlot.host.templates.link_farm import LinkFarm
from sandlot.host.templates.tree import Tree

# Copied, not linked: programs write some of these in place. Caches that may quote the machine's own settings
# (debconf's answers, the copies that ucf keeps) are not among them.
_COPIED: Final = (
    "lib/apt/extended_states",
    "lib/dpkg/alternatives",
    "lib/dpkg/arch",
    "lib/dpkg/available",
    "lib/dpkg/cmethopt",
    "lib/dpkg/diversions",
    "lib/dpkg/status",
    "lib/dpkg/triggers",
    "lib/pam",
    "lib/python",
    "lib/sgml-base",
    "lib/shells.state",
    "lib/ucf/hashfile",
    "lib/ucf/registry",
    "lib/xml-core",
)
_EMPTY: Final = (
    "cache/apt/archives",
    "cache/debconf",
    "lib/apt/lists",
    "lib/apt/mirrors/partial",
    "lib/apt/periodic",
    "lib/dpkg/alternatives",
    "lib/dpkg/parts",
    "lib/dpkg/triggers",
    "lib/dpkg/updates",
    "lib/misc",
    "lib/pam",
    "lib/ucf/cache",
    "log/apt",
)
_INFO: Final = "lib/dpkg/info"
_LOCKS: Final = frozenset({"Lock"})


def take_package_state(
    machine: Path, tree: Tree, farm: LinkFarm, accounts: tuple[Account, ...], groups: tuple[Group, ...]
) -> None:
    var = machine / "var"
    for path in _EMPTY:
        tree.directory(f"var/{path}")
    for path in _COPIED:
        _copy(var, path, tree)
    overrides = var / "lib/dpkg/statoverride"
    text = overrides.read_text(errors="replace") if overrides.is_file() else ""
    tree.file("var/lib/dpkg/statoverride", statoverride_text(text, accounts, groups).encode())
    for needed in ("status", "available", "diversions"):
        if not tree.exists(f"var/lib/dpkg/{needed}"):
            tree.file(f"var/lib/dpkg/{needed}", b"")
    if (var / _INFO).is_dir():
        farm.plant(var / _INFO, tree.root / "var" / _INFO, f"var/{_INFO}")
    else:
        tree.directory(f"var/{_INFO}")
    downloader = next((account.uid for account in accounts if account.name == "_apt"), 0)
    for path in ("var/lib/apt/lists/partial", "var/cache/apt/archives/partial"):
        tree.directory(path, 0o700, downloader)
    manual = next((account for account in accounts if account.name == "man"), None)
    tree.directory("var/cache/man", 0o755, manual.uid if manual else 0, manual.gid if manual else 0)
    tree.directory("var/cache/ldconfig", 0o700)


def _copy(var: Path, path: str, tree: Tree) -> None:
    source = var / path
    if not os.path.lexists(source) or source.name in _LOCKS:
        return
    status = source.lstat()
    if stat.S_ISDIR(status.st_mode):
        tree.directory(f"var/{path}")
        for child in sorted(os.listdir(source)):
            _copy(var, f"{path}/{child}", tree)
    elif stat.S_ISREG(status.st_mode) and status.st_mode & stat.S_IROTH:
        tree.file(f"var/{path}", source.read_bytes(), stat.S_IMODE(status.st_mode) & 0o755)
