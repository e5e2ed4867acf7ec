"""Write a root filesystem that is not yet in use: every mode and owner explicit, nothing ever overwritten."""

import os
import stat
from pathlib import Path, PurePosixPath

ROOT_ID = 0


class Tree:
    """The root directory being filled.

    Paths are relative to it. Files are opened `O_EXCL`, and a parent that is a symbolic link is refused, so no write
    can reach a hard link shared with the machine or leave the tree.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.entries = 0
        self._known: set[str] = {"."}

    def directory(self, path: str, mode: int = 0o755, uid: int = ROOT_ID, gid: int = ROOT_ID) -> None:
        """Make a directory and its parents (0755, root). One that exists takes the given mode and owner."""
        self._parents(path)
        self._make(path)
        target = self.root / path
        os.chown(target, uid, gid)
        os.chmod(target, mode)

    def file(self, path: str, data: bytes, mode: int = 0o644, uid: int = ROOT_ID, gid: int = ROOT_ID) -> None:
        self._parents(path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(self.root / path, flags, 0o600), "wb") as sink:
            sink.write(data)
            os.fchown(sink.fileno(), uid, gid)
            os.fchmod(sink.fileno(), mode)
        self.entries += 1

    def symlink(self, path: str, target: str) -> None:
        self._parents(path)
        os.symlink(target, self.root / path)
        self.entries += 1

    def exists(self, path: str) -> bool:
        return os.path.lexists(self.root / path)

    def _parents(self, path: str) -> None:
        if path.startswith("/") or ".." in PurePosixPath(path).parts:
            raise ValueError(f"path {path!r} leads out of the tree")
        for parent in reversed(PurePosixPath(path).parents):
            self._make(str(parent))

    def _make(self, path: str) -> None:
        if path in self._known:
            return
        target = self.root / path
        try:
            target.mkdir()
            target.chmod(0o755)
            self.entries += 1
        except FileExistsError:
            if not stat.S_ISDIR(target.lstat().st_mode):
                raise
        self._known.add(path)
