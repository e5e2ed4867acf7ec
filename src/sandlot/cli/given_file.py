"""A file that is given to a verb, read piece by piece."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from sandlot.model import InvalidArgument

_PIECE_BYTES = 1 << 18


class GivenFile:
    """- is stdin. Raises InvalidArgument."""

    def __init__(self, path: str, stack: ExitStack) -> None:
        self.done = 0
        self.size: int | None = None  # where it is known
        self._read: Callable[[int], bytes] = partial(os.read, sys.stdin.fileno())
        if path != "-":
            try:
                self._read = stack.enter_context(Path(path).open("rb")).read  # noqa: SIM115 - the stack closes it
                self.size = Path(path).stat().st_size
            except OSError as error:
                raise InvalidArgument(f"{path} cannot be read: {error.strerror}") from error

    async def pieces(self) -> AsyncIterator[bytes]:
        while piece := await asyncio.to_thread(self._read, _PIECE_BYTES):
            self.done += len(piece)
            yield piece
