"""A file of the user that is written whole or not at all."""

import os
import secrets
from collections.abc import AsyncIterable
from pathlib import Path

from sandlot.contracts import Host
from sandlot.model import ExportRequest
from sandlot.sdk.caller import call_blocking


class WholeFile:
    """Under another name beside it, until `commit`; leaving without one removes it. What was there stays until then.
    Raises OSError."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._partial = self._path.with_name(f".{self._path.name[:200]}.{secrets.token_hex(4)}.partial")
        self._fd = os.open(self._partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def __enter__(self) -> "WholeFile":
        return self

    def write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[os.write(self._fd, left) :]

    def commit(self) -> None:
        """It is on disk, under its name, when this returns."""
        os.fsync(self._fd)
        self._partial.rename(self._path)
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def __exit__(self, *_exception: object) -> None:
        os.close(self._fd)
        self._partial.unlink(missing_ok=True)


async def write_whole(pieces: AsyncIterable[bytes], path: str | os.PathLike[str]) -> int:
    """Gives its size. Raises OSError, and what the pieces raise."""
    size = 0
    file: WholeFile = await call_blocking(WholeFile, path)
    try:
        async for piece in pieces:
            await call_blocking(file.write, piece)
            size += len(piece)
        await call_blocking(file.commit)
    finally:
        file.__exit__()
    return size


async def export_to(host: Host, session_id: str, path: str | os.PathLike[str]) -> int:
    """A session as one file; gives its size."""
    async with host.export(ExportRequest(session_id)) as stream:
        return await write_whole(stream, path)
