"""The template's /etc: what is taken from the machine, by an explicit list, and what is written new.

Nothing outside `TAKEN` is ever copied. A row is `READABLE` where the file is data that nobody keeps secrets in, and
`AS_PACKAGED` where an administrator might have written a proxy, a token or a password: such a file is taken only while
its content is what its package delivered, so it can tell nothing about this machine.
"""

import glob
import hashlib
import os
import re
import stat
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from sandlot.host.templates.apt_sources import without_credentials
from sandlot.host.templates.link_farm import leads_home
from sandlot.host.templates.tree import Tree

_PRIVATE_KEY: Final = re.compile(rb"-----BEGIN [A-Z0-9 ]*PRIVATE KEY")
_WORLD_ENTER: Final = stat.S_IROTH | stat.S_IXOTH


class Rule(Enum):
    READABLE = "world-readable"
    AS_PACKAGED = "world-readable and exactly as its package delivered it"
    SOURCES = "package sources, without those that carry credentials"


@dataclass(frozen=True, slots=True)
class Row:
    """Paths below /etc, as a glob (a directory is taken whole), the rule for them, and why they are here."""

    pattern: str
    rule: Rule = Rule.READABLE
    why: str = ""


TAKEN: Final = (
    Row("adduser.conf"),
    Row("alternatives", why="the links that `java`, `vi`, `cc` and others go through"),
    Row("apt/keyrings/*.asc", why="public keys that sources are signed by"),
    Row("apt/keyrings/*.gpg"),
    Row("apt/preferences", why="without the pins, several releases in the sources would mix"),
    Row("apt/preferences.d/*"),
    Row("apt/sources.list", Rule.SOURCES),
    Row("apt/sources.list.d/*.list", Rule.SOURCES),
    Row("apt/sources.list.d/*.sources", Rule.SOURCES),
    Row("apt/trusted.gpg"),
    Row("apt/trusted.gpg.d/*.asc"),
    Row("apt/trusted.gpg.d/*.gpg"),
    Row("bash.bashrc", Rule.AS_PACKAGED, "a favourite place for exported tokens"),
    Row("ca-certificates.conf"),
    Row("ca-certificates/update.d", Rule.AS_PACKAGED, "hooks of update-ca-certificates"),
    Row("debconf.conf", Rule.AS_PACKAGED, "may name a directory server and its password"),
    Row("debian_version"),
    Row("default/useradd"),
    Row("deluser.conf"),
    Row("dpkg"),
    Row("ethertypes"),
    Row("fonts"),
    Row("gai.conf"),
    Row("groff", Rule.AS_PACKAGED),
    Row("host.conf"),
    Row("inputrc"),
    Row("java-*", Rule.AS_PACKAGED, "net.properties may name a proxy"),
    Row("ld.so.cache"),
    Row("ld.so.conf"),
    Row("ld.so.conf.d"),
    Row("libaudit.conf", why="read by PAM modules"),
    Row("locale.alias"),
    Row("localtime"),
    Row("login.defs"),
    Row("magic"),
    Row("magic.mime"),
    Row("manpath.config", Rule.AS_PACKAGED),
    Row("maven", Rule.AS_PACKAGED, "mvn does not start without m2.conf; settings.xml may hold passwords"),
    Row("mime.types"),
    Row("mke2fs.conf"),
    Row("netconfig"),
    Row("os-release"),
    Row("pam.conf"),
    Row("pam.d"),
    Row("perl", Rule.AS_PACKAGED, "libnet.cfg may name a proxy"),
    Row("protocols"),
    Row("python3/debian_config", why="made by a package script, so not in its list of files"),
    Row("python3*", Rule.AS_PACKAGED, "sitecustomize.py runs in every interpreter"),
    Row("rpc"),
    Row("security", Rule.AS_PACKAGED, "pam_env.conf may set a proxy"),
    Row("services"),
    Row("sgml"),
    Row("shells"),
    Row("skel", Rule.AS_PACKAGED),
    Row("ssl/openssl.cnf", Rule.AS_PACKAGED, "may hold the PIN of a key store"),
    Row("terminfo"),
    Row("timezone"),
    Row("ucf.conf", Rule.AS_PACKAGED),
    Row("vim", Rule.AS_PACKAGED),
    Row("wgetrc", Rule.AS_PACKAGED, "may name a proxy"),
    Row("xattr.conf"),
    Row("xml"),
)


def matches(etc: Path, row: Row) -> Iterator[str]:
    """The paths of a row that the machine has, relative to its /etc."""
    if glob.has_magic(row.pattern):
        yield from sorted(glob.iglob(row.pattern, root_dir=etc))
    elif os.path.lexists(etc / row.pattern):
        yield row.pattern


def packaged_sums(status: str) -> dict[str, str]:
    """MD5 sums of the configuration files that packages delivered, by absolute path, from dpkg's status file."""
    sums: dict[str, str] = {}
    inside = False
    for line in status.splitlines():
        if line.startswith(" "):
            words = line.split()
            if inside and len(words) >= 2:
                sums[words[0]] = words[1]
        else:
            inside = line.startswith("Conffiles:")
    return sums


class EtcCopy:
    """Copies the rows of `TAKEN` into a tree and counts what it left out, by reason."""

    def __init__(self, machine: Path, tree: Tree, sums: Mapping[str, str]) -> None:
        self.left_out: Counter[str] = Counter()
        self._etc = machine / "etc"
        self._tree = tree
        self._sums = sums

    def take_all(self) -> None:
        for row in TAKEN:
            for path in matches(self._etc, row):
                self._take(path, row.rule)

    def _take(self, path: str, rule: Rule) -> None:
        source = self._etc / path
        status = source.lstat()
        if stat.S_ISDIR(status.st_mode):
            if status.st_mode & _WORLD_ENTER != _WORLD_ENTER:
                self.left_out["not world-readable"] += 1
                return
            self._tree.directory(f"etc/{path}")
            for child in sorted(os.listdir(source)):
                self._take(f"{path}/{child}", rule)
        elif self._tree.exists(f"etc/{path}"):
            return
        elif stat.S_ISLNK(status.st_mode):
            self._take_link(path, os.readlink(source))
        elif stat.S_ISREG(status.st_mode):
            self._take_file(path, status, rule)
        else:
            self.left_out["special file"] += 1

    def _take_link(self, path: str, target: str) -> None:
        if leads_home(target):
            self.left_out["link into a home"] += 1
        else:
            self._tree.symlink(f"etc/{path}", target)

    def _take_file(self, path: str, status: os.stat_result, rule: Rule) -> None:
        if not status.st_mode & stat.S_IROTH:
            self.left_out["not world-readable"] += 1
            return
        data = (self._etc / path).read_bytes()
        if rule is Rule.AS_PACKAGED and self._sums.get(f"/etc/{path}") != _md5(data):
            self.left_out["changed on the machine"] += 1
            return
        if _PRIVATE_KEY.search(data):
            self.left_out["private key"] += 1
            return
        if rule is Rule.SOURCES:
            text, dropped = without_credentials(data.decode(errors="replace"), Path(path).suffix)
            self.left_out["source with credentials"] += dropped
            data = text.encode()
        self._tree.file(f"etc/{path}", data, stat.S_IMODE(status.st_mode) & 0o755)


def _md5(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()
