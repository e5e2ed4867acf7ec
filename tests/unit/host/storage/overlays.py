"""Overlays for tests: sessions that do at random what programs do, and looks at whole trees."""

import ctypes
import errno
import hashlib
import os
import random
import shutil
import stat
import struct
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from sandlot.host.kernel import mount_layers

NAMES = ("a", "b", "c", "d e", "x\n", "\udcff", "g", "h")
EXCHANGE = 2
FSOPEN, FSCONFIG, FSMOUNT, SET_FLAG, SET_STRING, CREATE = 430, 431, 432, 0, 1, 6
LIBC = ctypes.CDLL(None, use_errno=True)
ACL = struct.pack("<I", 2) + b"".join(
    struct.pack("<HHI", *entry)
    for entry in ((1, 6, 0xFFFFFFFF), (2, 7, 12345), (4, 4, 0xFFFFFFFF), (16, 7, 0xFFFFFFFF), (32, 0, 0xFFFFFFFF))
)
CAPABILITY = struct.pack("<IIIII", 0x02000001, 1 << 10, 0, 0, 0)

Told = dict[str, tuple[object, ...]]


def called(result: int, what: str) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), what)
    return result


@contextmanager
def session(upper: Path, lower: Sequence[Path]) -> Generator[str]:
    """A root as the keeper mounts it, attached nowhere; volatile, because the end of each would wait for the disk."""
    shutil.rmtree(upper / "w")
    (upper / "w").mkdir()
    context = called(LIBC.syscall(FSOPEN, b"overlay", 1), "fsopen")
    try:
        options = [("lowerdir+", str(layer)) for layer in lower]
        options += [("upperdir", str(upper / "u")), ("workdir", str(upper / "w"))]
        for key, value in (*options, ("redirect_dir", "on"), ("metacopy", "on"), ("source", "test")):
            called(LIBC.syscall(FSCONFIG, context, SET_STRING, key.encode(), os.fsencode(value), 0), key)
        called(LIBC.syscall(FSCONFIG, context, SET_FLAG, b"volatile", None, 0), "volatile")
        called(LIBC.syscall(FSCONFIG, context, CREATE, None, None, 0), "create")
        root = called(LIBC.syscall(FSMOUNT, context, 1, 0), "fsmount")
    finally:
        os.close(context)
    try:
        yield f"/proc/self/fd/{root}/."
    finally:
        os.close(root)


def layer(folder: Path) -> Path:
    for part in ("u", "w"):
        (folder / part).mkdir(parents=True)
    return folder


class Session:
    """Does at random what programs do to files."""

    def __init__(self, root: str, rng: random.Random) -> None:
        self.root = root
        self.rng = rng

    def found(self, *, folders: bool) -> list[str]:
        paths = [self.root] if folders else []
        for at, inner, files in os.walk(self.root):
            paths += [f"{at}/{name}" for name in (inner if folders else inner + files)]
        return sorted(path for path in paths if path == self.root or not (folders and os.path.islink(path)))

    def new(self) -> str:
        return f"{self.rng.choice(self.found(folders=True))}/{self.rng.choice(NAMES)}"

    def some(self) -> str:
        found = self.found(folders=False)
        return self.rng.choice(found) if found else self.new()

    def some_itself(self) -> str:
        """What a call that follows links may be given: nothing of this reaches the machine's own files."""
        path = self.some()
        if os.path.islink(path):
            raise OSError(errno.ELOOP, "a link")
        return path

    def clear(self, path: str) -> None:
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        elif os.path.lexists(path):
            os.remove(path)

    def work(self, times: int) -> None:
        operations = (
            *(self.write,) * 3, self.make, self.symlink, self.remove, self.move, self.move, self.move_folder,
            self.move_folder, self.move_folder, self.exchange, self.mode, self.mode, self.owner, self.time,
            self.attribute, self.append, self.cut, self.link, self.pipe, self.through,
        )  # fmt: skip
        for _ in range(times):
            with suppress(OSError):
                self.rng.choice(operations)()

    def write(self) -> None:
        path = self.new()
        if os.path.isdir(path):
            return
        self.clear(path)
        Path(path).write_text(self.rng.choice(["", "one\n", "two\n" * 3000]))

    def make(self) -> None:
        os.mkdir(self.new())

    def symlink(self) -> None:
        os.symlink(self.rng.choice(["a", "/nowhere", "../b"]), self.new())

    def remove(self) -> None:
        self.clear(self.some())

    def move(self) -> None:
        os.rename(self.some(), self.new())

    def move_folder(self) -> None:
        target = self.new()
        if self.rng.random() < 0.2:
            self.clear(target)
        os.rename(self.rng.choice(self.found(folders=True)), target)

    def exchange(self) -> None:
        names = (os.fsencode(self.some()), os.fsencode(self.some()))
        LIBC.renameat2(-100, names[0], -100, names[1], EXCHANGE)

    def mode(self) -> None:
        os.chmod(self.some_itself(), self.rng.choice([0o644, 0o755, 0o2750, 0o4711]))

    def owner(self) -> None:
        os.chown(self.some(), self.rng.randrange(5), self.rng.randrange(5), follow_symlinks=False)

    def time(self) -> None:
        os.utime(self.some(), ns=(1, self.rng.randrange(1 << 60)), follow_symlinks=False)

    def attribute(self) -> None:
        name, value = self.rng.choice(
            [("user.x", b"1"), ("user.y", b""), ("system.posix_acl_access", ACL), ("security.capability", CAPABILITY)]
        )
        os.setxattr(self.some(), name, value, follow_symlinks=False)

    def append(self) -> None:
        path = self.some_itself()
        if os.path.isfile(path):
            with open(path, "a") as file:
                file.write("more\n")

    def cut(self) -> None:
        os.truncate(self.some_itself(), self.rng.choice([0, 1, 100_000]))

    def link(self) -> None:
        os.link(self.some(), self.new(), follow_symlinks=False)

    def pipe(self) -> None:
        os.mkfifo(self.new())

    def through(self) -> None:
        """There and back again, and a change below."""
        folder = self.rng.choice(self.found(folders=True))
        aside = self.new()
        os.rename(folder, aside)
        Path(aside, "passed").write_text(self.rng.choice(["1", "2"]))
        os.rename(aside, folder)


def walk(root: str) -> Told:
    told: Told = {}
    links: dict[int, str] = {}
    pending = [""]
    while pending:
        at = pending.pop(0)
        path = f"{root}{at}"
        found = os.lstat(path or root)
        content = ""
        if stat.S_ISREG(found.st_mode):
            with open(path, "rb") as file:
                content = hashlib.md5(file.read()).hexdigest()
        elif stat.S_ISLNK(found.st_mode):
            content = os.readlink(path)
        names = sorted(os.listdir(path)) if stat.S_ISDIR(found.st_mode) else []
        pending += [f"{at}/{name}" for name in names]
        attributes = sorted((name, os.getxattr(path, name, follow_symlinks=False)) for name in _attributes(path))
        size = found.st_size if stat.S_ISREG(found.st_mode) else 0
        same = links.setdefault(found.st_ino, at) if not stat.S_ISDIR(found.st_mode) else ""
        marks = (found.st_mode, found.st_uid, found.st_gid, size, found.st_mtime_ns, found.st_rdev)
        told[at] = (*marks, content, names, attributes, same)
    return told


def _attributes(path: str) -> list[str]:
    return os.listxattr(path, follow_symlinks=False)


def view(layers: Sequence[Path]) -> Told:
    root = mount_layers(layers)
    try:
        return walk(f"/proc/self/fd/{root}/.")
    finally:
        os.close(root)
