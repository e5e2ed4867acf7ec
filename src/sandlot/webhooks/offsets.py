"""How far each address has been told, kept over restarts; and that only one program tells it."""

import fcntl
import hashlib
import os
from contextlib import suppress
from pathlib import Path

_MODE = 0o600


class Offset:
    """Of one address. What was told and not yet kept is told again."""

    def __init__(self, folder: Path, url: str) -> None:
        self._path = folder / hashlib.sha256(url.encode()).hexdigest()[:32]
        self._lock = -1

    def hold(self) -> bool:
        """Whether nobody else tells this address. Raises OSError."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._lock < 0:
            self._lock = os.open(self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _MODE)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def release(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def read(self) -> int | None:
        """None: nothing was told yet."""
        with suppress(OSError, ValueError):
            return int(self._path.read_text())
        return None

    def write(self, offset: int) -> None:
        """Whole or not at all. Raises OSError."""
        new = self._path.with_suffix(".new")
        new.write_text(str(offset))
        new.replace(self._path)
