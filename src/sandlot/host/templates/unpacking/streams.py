"""Bytes of an archive, counted and hashed on the way: from the file, and out of a decompressor."""

import bz2
import hashlib
import io
import lzma
import os
import zlib
from collections.abc import Callable
from typing import Any

import zstandard

from sandlot.host.templates.unpacking.refusal import Refused

PIECE_BYTES = 1 << 20
_FREE_OF_RATIO_BYTES = 64 << 20  # a small archive may be as dense as it likes
_LZMA_MEMORY_MAX = 256 << 20
_ZSTD_WINDOW_MAX = 128 << 20


class FileBytes(io.RawIOBase):
    """A part of a file, whoever else reads it meanwhile. Tells its progress, and the digest of what was read."""

    def __init__(self, fd: int, offset: int = 0, size: int | None = None, on_read: Callable[[int], None] | None = None):
        self._fd, self._at = fd, offset
        self._end = os.fstat(fd).st_size if size is None else offset + size
        self._on_read = on_read
        self._hash = hashlib.sha256()
        self.count = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer).cast("B")
        got = os.preadv(self._fd, [view[: max(0, min(len(view), self._end - self._at))]], self._at)
        self._hash.update(view[:got])
        self._at += got
        self.count += got
        if self._on_read:
            self._on_read(got)
        return got

    def digest(self) -> str:
        """Of all of it: what was not read yet is read now."""
        buffer = bytearray(PIECE_BYTES)
        while self.readinto(buffer):
            pass
        return f"sha256:{self._hash.hexdigest()}"


class _Zlib:
    """The others have `eof` and a bound for what comes out; this one has another name for the rest."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        self._tail = b""

    def decompress(self, data: bytes, max_length: int) -> bytes:
        out = self._inner.decompress(self._tail + data, max_length)
        self._tail = self._inner.unconsumed_tail
        return out

    @property
    def needs_input(self) -> bool:
        return not self._tail

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data


_MAKERS: dict[str, Callable[[], Any]] = {
    "gzip": _Zlib,
    "bzip2": bz2.BZ2Decompressor,
    "xz": lambda: lzma.LZMADecompressor(memlimit=_LZMA_MEMORY_MAX),
}
_MAGIC = (
    (b"\x1f\x8b", "gzip"),
    (b"BZh", "bzip2"),
    (b"\xfd7zXZ\0", "xz"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
)


def compression(fd: int, offset: int = 0) -> str:
    """Told by the first bytes; empty for none."""
    head = os.pread(fd, 8, offset)
    return next((name for magic, name in _MAGIC if head.startswith(magic)), "")


class Inflated(io.RawIOBase):
    """What comes out of a decompressor, never more at once than was asked for. Several streams behind each other are
    one. Raises Refused for what is broken, and for what grows beyond the ratio."""

    def __init__(self, source: FileBytes, how: str, ratio_max: int) -> None:
        self._source, self._how, self._ratio_max = source, how, ratio_max
        self._hash = hashlib.sha256()
        self._decoder: Any = _MAKERS[how]() if how in _MAKERS else None
        self._reader: Any = None
        if how == "zstd":
            window = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_MAX)
            self._reader = window.stream_reader(io.BufferedReader(source, PIECE_BYTES), read_across_frames=True)
        self._waiting = b""
        self._ended = False
        self.count = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer).cast("B")
        try:
            data = self._next(len(view))
        except (zlib.error, lzma.LZMAError, zstandard.ZstdError, OSError, EOFError, ValueError) as error:
            raise Refused(f"the {self._how} stream is broken: {error}") from error
        view[: len(data)] = data
        self._hash.update(data)
        self.count += len(data)
        if self.count > _FREE_OF_RATIO_BYTES and self.count > self._ratio_max * max(1, self._source.count):
            raise Refused(f"it grows to more than {self._ratio_max} times its size when it is unpacked")
        return len(data)

    def _next(self, count: int) -> bytes:
        if self._reader is not None or not self._how:
            return self._reader.read(count) if self._reader is not None else self._source.read(count) or b""
        while not self._ended:
            if self._decoder.eof:
                self._waiting = self._decoder.unused_data or self._source.read(PIECE_BYTES) or b""
                if not self._waiting.strip(b"\0"):
                    self._ended = True  # padding, or the end
                    break
                self._decoder = _MAKERS[self._how]()
            data, self._waiting = self._waiting, b""
            if not data and self._decoder.needs_input:
                data = self._source.read(PIECE_BYTES) or b""
                if not data:
                    raise EOFError("it ends too soon")
            if out := self._decoder.decompress(data, count):
                return out
        return b""

    def digest(self) -> str:
        """Of all that comes out."""
        buffer = bytearray(PIECE_BYTES)
        while self.readinto(buffer):
            pass
        return f"sha256:{self._hash.hexdigest()}"
