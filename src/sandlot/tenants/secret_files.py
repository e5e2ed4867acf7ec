"""A secret of a data directory: 32 random bytes in a file of its own, made when they are first wanted."""

import os
import secrets
from pathlib import Path

from sandlot.model import Unavailable

_SECRET_BYTES = 32


def read_secret(path: Path) -> bytes:
    """The same after every restart. Raises Unavailable."""
    try:
        new = path.with_suffix(f".{secrets.token_hex(4)}")
        if not path.exists():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                os.write(file, secrets.token_bytes(_SECRET_BYTES))
                os.fsync(file)
            finally:
                os.close(file)
            _place(new, path)
        found = path.read_bytes()
    except OSError as error:
        raise Unavailable(f"{path} cannot be read or made: {error.strerror}") from error
    if len(found) != _SECRET_BYTES:
        step = "remove it; tokens that were given out are worth nothing then"
        raise Unavailable(f"{path} is not what was written", next_step=step)
    return found


def _place(new: Path, path: Path) -> None:
    """Two programs may be at it: both have the one that was first."""
    try:
        os.link(new, path)
    except FileExistsError:
        pass
    finally:
        new.unlink()
