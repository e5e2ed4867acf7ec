"""The files of a log: each is called for the first record in it."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sandlot.model import AUDIT_ANCHOR, AUDIT_FOLDER

FOLDER = AUDIT_FOLDER
ANCHOR_FILE = AUDIT_ANCHOR
LINE_BYTES_MAX = 1 << 16
_SUFFIX = ".jsonl"
_DIGITS = 12


@dataclass(frozen=True, slots=True)
class LogFile:
    first: int
    path: Path


def path_of(folder: Path, first: int) -> Path:
    return folder / f"{first:0{_DIGITS}d}{_SUFFIX}"


def files_in(folder: Path) -> list[LogFile]:
    """Oldest first. What has another name is none of ours."""
    try:
        names = [path.name for path in folder.iterdir()]
    except FileNotFoundError:
        return []
    found = [name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX)]
    return sorted(
        (LogFile(int(name), path_of(folder, int(name))) for name in found if name.isdecimal() and len(name) == _DIGITS),
        key=lambda file: file.first,
    )


def lines_of(path: Path) -> Iterator[bytes]:
    """Without their ends; a last one that has none is half, and left out. Raises OSError."""
    with path.open("rb") as file:
        while line := file.readline(LINE_BYTES_MAX):
            if line.endswith(b"\n"):
                yield line[:-1]
            elif len(line) == LINE_BYTES_MAX:
                yield line
