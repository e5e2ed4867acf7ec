"""The file verbs as plain functions, and what must never change outside of a session."""

import secrets
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from sandlot.attack.bait import Sentinel
from sandlot.host.service import SandboxHostService
from sandlot.model import (
    DirectoryMake,
    FileInfo,
    FileList,
    FileRead,
    FileRemove,
    FileRename,
    FileStat,
    FileWrite,
)
from tests.security.stage import Stage

NEW = b"new content\n"
SIZE_BYTES = 54321


async def pieces(*content: bytes) -> AsyncIterator[bytes]:
    for piece in content:
        yield piece


async def read_all(host: SandboxHostService, request: FileRead) -> bytes:
    async with host.read_file(request) as stream:
        return b"".join([piece async for piece in stream])


async def list_all(host: SandboxHostService, request: FileList) -> list[FileInfo]:
    async with host.list_files(request) as batches:
        return [info async for batch in batches for info in batch]


class Door:
    """One session, touched through the host as one user."""

    def __init__(self, stage: Stage, session: str, user: str | None = None) -> None:
        self.stage = stage
        self.session = session
        self.user = user
        self.host = stage.host

    def as_user(self, user: str | None) -> "Door":
        return Door(self.stage, self.session, user)

    def shell(self, script: str, user: str = "user") -> str:
        return self.stage.shell(self.session, script, user)

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        return self.stage.wait(read_all(self.host, FileRead(self.session, path, self.user, offset, length)))

    def write(self, path: str, *content: bytes, mode: int | None = None, parents: bool = True) -> FileInfo:
        request = FileWrite(self.session, path, self.user, mode, parents)
        return self.stage.wait(self.host.write_file(request, pieces(*(content or (NEW,)))))

    def list(self, path: str, depth: int = 1) -> list[FileInfo]:
        return self.stage.wait(list_all(self.host, FileList(self.session, path, self.user, depth)))

    def stat(self, path: str, *, follow: bool = True) -> FileInfo:
        return self.stage.wait(self.host.stat_file(FileStat(self.session, path, self.user, follow)))

    def make(self, path: str, mode: int = 0o755, *, parents: bool = True) -> bool:
        return self.stage.wait(self.host.make_directory(DirectoryMake(self.session, path, self.user, mode, parents)))

    def rename(self, path: str, to: str, *, overwrite: bool = True) -> FileInfo:
        return self.stage.wait(self.host.rename_file(FileRename(self.session, path, self.user, to, overwrite)))

    def remove(self, path: str, *, recursive: bool = False) -> None:
        self.stage.wait(self.host.remove_file(FileRemove(self.session, path, self.user, recursive)))


# Every verb, and both ends of the one that has two; each as it would be called for one path.
VERBS: dict[str, Callable[[Door, str], object]] = {
    "read": lambda door, path: door.read(path),
    "write": lambda door, path: door.write(path),
    "write without parents": lambda door, path: door.write(path, parents=False),
    "list": lambda door, path: door.list(path),
    "list deep": lambda door, path: door.list(path, depth=9),
    "stat": lambda door, path: door.stat(path),
    "stat of a link": lambda door, path: door.stat(path, follow=False),
    "make": lambda door, path: door.make(path),
    "rename": lambda door, path: door.rename(path, f"{path}-renamed"),
    "rename onto": lambda door, path: door.rename(_made(door), path),
    "rename without overwriting": lambda door, path: door.rename(_made(door), path, overwrite=False),
    "remove": lambda door, path: door.remove(path),
    "remove recursively": lambda door, path: door.remove(path, recursive=True),
}


def _made(door: Door) -> str:
    name = f"/workspace/made-{secrets.token_hex(4)}"
    door.write(name)
    return name


@contextmanager
def outside(name: str) -> Generator[Sentinel]:
    """Such a directory, where users of any number could walk to it. What pytest gives is closed to them."""
    above = Path(tempfile.mkdtemp(prefix="sandlot-outside-"))
    try:
        above.chmod(0o755)
        (above / name).mkdir()
        sentinel = Sentinel(above / name)
        yield sentinel
        assert sentinel.is_untouched()
    finally:
        shutil.rmtree(above)


def litter(door: Door) -> str:
    """Names that only a write that was given up leaves behind."""
    return door.shell("find / -xdev -name '.sandlot-*' 2>/dev/null || :", "root")


def file_threads() -> list[int]:
    """Threads of this process that act for sessions."""
    return [
        thread.native_id
        for thread in threading.enumerate()
        if thread.name.startswith("sandlot-files") and thread.native_id
    ]
