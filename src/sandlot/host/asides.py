"""Names of what is not in its place yet, and the notes by which the next engine finds those that this one leaves.

New content has no name until it is whole. To take the place of another file it needs one for a moment, and longer where
the filesystem has no files without names. An engine that is killed in between leaves that name in the session. So each
is noted first, in a file beside the journal: one write into the page cache, which outlives the process, and is not
waited for. After a power cut notes may be missing, as the last writes of a session may be.
"""

import errno
import json
import logging
import os
import secrets
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

HIDDEN_PREFIX = ".sandlot-"
_NAME_BYTES = 8
_SLOTS = 1024
_SLOT_BYTES = 16 * 1024  # a path of 4 KiB, each byte of it escaped
_NOTHING = b"\0"
_log = logging.getLogger("sandlot.host")


@dataclass(frozen=True, slots=True)
class Note:
    """What has a hidden name, where, and whose rights are needed there."""

    session_id: str
    user: str
    folder: str  # as the session names it
    name: str
    target: str = ""  # the file that all of it is being copied into, where it cannot take its place
    mode: int | None = None  # that the target gets


def is_hidden_name(name: str) -> bool:
    """Whether it is one of ours: nothing else is ever removed because of a note."""
    rest = name.removeprefix(HIDDEN_PREFIX)
    return name.startswith(HIDDEN_PREFIX) and len(rest) == 2 * _NAME_BYTES and rest.isalnum()


class Aside:
    """A hidden name in a directory. Whoever has it closes it, and then nothing has that name."""

    def __init__(self, above: int, over: Callable[[], None], name: str) -> None:
        self.name = name
        self._above = above
        self._over = over
        self._is_open = True
        self._is_named = True

    def __enter__(self) -> "Aside":
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def put_at(self, name: str, file: int) -> None:
        """Gives the open file the name, in the place of what has it. Raises OSError."""
        os.rename(self.name, name, src_dir_fd=self._above, dst_dir_fd=self._above)
        # Of two names of one file a rename leaves both.
        self._is_named = os.fstat(file).st_nlink > 1

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            if self._is_named:
                with suppress(OSError):  # it has its place by now
                    os.unlink(self.name, dir_fd=self._above)
            self._over()


def hidden_name() -> str:
    return f"{HIDDEN_PREFIX}{secrets.token_hex(_NAME_BYTES)}"


class Asides:
    """The notes, in a file of equal parts. Threads share it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1
        self._lock = threading.Lock()
        self._free: list[int] = []
        self._left: dict[str, dict[int, Note]] = {}

    def open(self) -> None:
        """Blocking. Reads what an earlier engine left; those notes stay until `settle`. Raises OSError."""
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        size = os.fstat(self._fd).st_size
        for slot in range(_SLOTS):
            note = self._read(slot) if slot * _SLOT_BYTES < size else None
            if note is None:
                self._free.append(slot)
            else:
                self._left.setdefault(note.session_id, {})[slot] = note

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _read(self, slot: int) -> Note | None:
        data = os.pread(self._fd, _SLOT_BYTES, slot * _SLOT_BYTES)
        text, end, _rest = data.partition(b"\n")
        if not end or data.startswith(_NOTHING):
            return None
        try:
            note = Note(**json.loads(text))
        except (ValueError, TypeError):  # a note that was not finished: nothing had the name yet
            return None
        return note if is_hidden_name(note.name) else None

    def take(self, note: Note) -> Callable[[], None]:
        """Before something has the name. Gives what is to be called when nothing has it any more. Raises OSError."""
        text = json.dumps(asdict(note)).encode() + b"\n"
        if len(text) > _SLOT_BYTES:
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), note.folder)
        with self._lock:
            if self._fd < 0 or not self._free:
                raise OSError(errno.EMFILE, f"{_SLOTS} files are being put in their places", note.folder)
            slot = self._free.pop()
        try:
            os.pwrite(self._fd, text, slot * _SLOT_BYTES)
        except BaseException:  # a full disk; then raised again
            self._give_back(slot)
            raise
        return lambda: self._give_back(slot)

    def _give_back(self, slot: int) -> None:
        with self._lock:
            if self._fd >= 0:
                with suppress(OSError):
                    os.pwrite(self._fd, _NOTHING, slot * _SLOT_BYTES)
                self._free.append(slot)

    def left(self, session_id: str) -> dict[int, Note]:
        """What an earlier engine left in a session, by the number of the note."""
        return dict(self._left.get(session_id, {}))

    def sessions(self) -> tuple[str, ...]:
        """Those in which something may be left."""
        return tuple(self._left)

    def settle(self, session_id: str) -> None:
        """Nothing is left in it, or the session is gone."""
        for slot in self._left.pop(session_id, {}):
            self._give_back(slot)
