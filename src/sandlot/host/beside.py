"""What lies in a data directory beside the journal and goes with a backup: the audit log with its anchor, how far it
has heard of changes of keys, and how far each webhook was told. The engine does not read any of it.

In a backup all are files with flat names."""

import errno
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sandlot.host.archives.entries import Entry, Kind
from sandlot.host.archives.reading import damaged
from sandlot.host.kernel import sync_entry
from sandlot.model import AUDIT_ANCHOR, AUDIT_FOLDER, KEYS_FILE, KEYS_TOLD_FILE, WEBHOOKS_FOLDER, limits

_PIECE_BYTES: Final = 1 << 20
_LOG: Final = re.compile(r"[0-9]{12}\.jsonl", re.ASCII)
_OFFSET: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)
_IN_BACKUP: Final = re.compile(
    r"/(?:audit-([0-9]{12}\.jsonl)|webhook-([0-9a-f]{32})|(audit\.anchor|keys\.told))", re.ASCII
)


@dataclass(slots=True)
class Beside:
    """As it was at one moment. What is appended to a file meanwhile is not in it."""

    logs: list[tuple[str, int, int]]  # names in the backup, descriptors, and how much of each
    small: list[tuple[str, bytes]]

    @property
    def size_bytes(self) -> int:
        return sum(size for _, _, size in self.logs) + sum(len(content) for _, content in self.small)

    def entries(self) -> Iterator[Entry]:
        for name, fd, size in self.logs:
            yield entry(name, size, _pieces(fd, size))
        for name, content in self.small:
            yield entry(name, len(content), iter((content,)))


def look(data: Path, anchor: Path, stack: ExitStack) -> tuple[Beside, bytes | None]:
    """And the keys. All of one moment where whoever writes the log does so on this thread: it is read in one go, and
    quickly, because the log itself is only opened. Raises OSError."""
    logs: list[tuple[str, int, int]] = []
    for name in _names(data / AUDIT_FOLDER, _LOG):
        fd = os.open(data / AUDIT_FOLDER / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        stack.callback(os.close, fd)
        logs.append((f"/audit-{name}", fd, os.fstat(fd).st_size))
    places = [("/audit.anchor", anchor), ("/keys.told", data / KEYS_TOLD_FILE)]
    places += [(f"/webhook-{name}", data / WEBHOOKS_FOLDER / name) for name in _names(data / WEBHOOKS_FOLDER, _OFFSET)]
    small = [(name, content) for name, path in places if (content := _read(path)) is not None]
    return Beside(logs, small), _read(data / KEYS_FILE, limits.BACKUP_KEYS_BYTES_MAX)


def _names(folder: Path, form: re.Pattern[str]) -> list[str]:
    try:
        found = os.listdir(folder)
    except FileNotFoundError:
        return []
    names = sorted(name for name in found if form.fullmatch(name))
    if len(names) > limits.BACKUP_BESIDE_MAX:
        raise OSError(errno.EFBIG, f"{folder.name} has more than {limits.BACKUP_BESIDE_MAX} files", str(folder))
    return names


def _read(path: Path, size_max: int = limits.BACKUP_BESIDE_BYTES_MAX) -> bytes | None:
    try:
        with path.open("rb") as file:
            content = file.read(size_max + 1)
    except FileNotFoundError:
        return None
    if len(content) > size_max:  # half of it would be worse than no backup
        raise OSError(errno.EFBIG, f"{path.name} is larger than {size_max} bytes", str(path))
    return content


def entry(name: str, size: int, content: Iterator[bytes]) -> Entry:
    return Entry(name, Kind.FILE, 0o600, size=size, extents=((0, size),) * bool(size), content=content)


def _pieces(fd: int, size: int) -> Iterator[bytes]:
    at = 0
    while at < size and (piece := os.pread(fd, min(_PIECE_BYTES, size - at), at)):
        yield piece
        at += len(piece)


# ---- back ----------------------------------------------------------------------------------------------------------


def takes(given: Entry) -> bool:
    """Whether an entry of a backup is one of these."""
    return given.kind is Kind.FILE and _IN_BACKUP.fullmatch(given.path) is not None


def take(given: Entry, folder: Path) -> None:
    """Into a folder of our own, until all of the backup is there. Raises InvalidArgument, OSError."""
    if not given.path.startswith("/audit-") and given.content_bytes > limits.BACKUP_BESIDE_BYTES_MAX:
        raise damaged(f"its {given.path[1:]} is too large")
    folder.mkdir(mode=0o700, exist_ok=True)
    if len(os.listdir(folder)) >= 2 * limits.BACKUP_BESIDE_MAX:
        raise damaged("too much is beside its journal")
    with (folder / given.path[1:]).open("xb") as file:
        for piece in given.content or ():
            file.write(piece)


def put(folder: Path, data: Path, anchor: Path) -> None:
    """What was taken, where it belongs. An anchor that is there already, because it is kept apart, knows better: then
    the log says what is missing since the backup. Raises OSError."""
    if not folder.is_dir():
        return
    for path in sorted(folder.iterdir()):
        match = _IN_BACKUP.fullmatch(f"/{path.name}")
        assert match is not None
        log, offset, name = match.groups()
        if name == AUDIT_ANCHOR:
            if not anchor.exists():
                _write(anchor, [path.read_bytes()])
            continue
        place = (AUDIT_FOLDER, log) if log else (WEBHOOKS_FOLDER, offset) if offset else ("", name)
        (data / place[0]).mkdir(mode=0o700, exist_ok=True)
        path.chmod(0o600)
        path.replace(data / place[0] / place[1])
    for name in ("", AUDIT_FOLDER, WEBHOOKS_FOLDER):
        if (data / name).is_dir():
            sync_entry(data / name)


def _write(path: Path, content: Iterable[bytes]) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.writelines(content)
        file.flush()
        os.fsync(fd)
