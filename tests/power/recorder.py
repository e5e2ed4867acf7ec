"""`python -m tests.power.recorder IMAGE MOUNTPOINT LOG`: a disk that remembers in which order it was written.

A filesystem of two files, spoken with the kernel directly. `disk` is the image: every write and every flush goes into
the log in its order. What is written to `marks` goes into the same log: so it is known what had been acknowledged at
the time of a write. It ends when it is unmounted.
"""

import ctypes
import errno
import os
import stat
import struct
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import BinaryIO

_IN = struct.Struct("<IIQQIIIHH")
_OUT = struct.Struct("<IiQ")
_ATTRIBUTES = struct.Struct("<6Q10I")
_ENTRY = struct.Struct("<4Q2I")
_TIMES = struct.Struct("<QII")
_INIT = struct.Struct("<4I2H2I2H8I")
_READ = struct.Struct("<QQI")
_WRITE = struct.Struct("<QQIIQII")
_RECORD = struct.Struct("<BQI")

_ROOT, _DISK, _MARKS = 1, 2, 3
_NAMES = {b"disk": _DISK, b"marks": _MARKS}
_WRITE_MAX = 128 << 10
_BIG_WRITES, _DIRECT_IO, _KEEP_CACHE = 1 << 5, 1, 2
_FOREVER_S = 1 << 30
_MS_NOSUID_NODEV = 2 | 4


class Kind(IntEnum):
    WRITE, FLUSH, MARK = range(3)


@dataclass(frozen=True, slots=True)
class Entry:
    kind: Kind
    offset: int
    data: bytes


def read_log(path: Path) -> Iterator[Entry]:
    with path.open("rb") as file:
        while head := file.read(_RECORD.size):
            kind, offset, size = _RECORD.unpack(head)
            yield Entry(Kind(kind), offset, file.read(size))


class _Refused(Exception):
    def __init__(self, number: int) -> None:
        self.number = number


class Recorder:
    """One request of the kernel after the other: the order of the log is the order of what it was told."""

    def __init__(self, image: Path, log: BinaryIO) -> None:
        self._image = os.open(image, os.O_RDWR)
        self._size = image.stat().st_size
        self._log = log
        self._verbs: dict[int, Callable[[int, bytes], bytes]] = {
            1: self._look_up,
            3: self._tell_attributes,
            4: self._tell_attributes,
            14: self._open,
            15: self._read,
            16: self._write,
            17: lambda _node, _body: bytes(80),
            18: lambda _node, _body: b"",  # release
            20: self._flush,
            25: lambda _node, _body: b"",  # a descriptor was closed; nothing was asked of the disk
            26: self._begin,
        }

    def serve(self, device: int) -> None:
        buffer = bytearray(_WRITE_MAX + 4096)
        while True:
            try:
                size = os.readv(device, [buffer])
            except OSError as error:
                if error.errno == errno.ENODEV:
                    return  # unmounted
                if error.errno in (errno.EINTR, errno.ENOENT):
                    continue  # whoever asked has gone
                raise
            _size, verb, unique, node, *_rest = _IN.unpack_from(buffer)
            if verb in (2, 36, 42):  # forget, interrupt, forget many: nobody waits for an answer
                continue
            self._answer(device, unique, verb, node, bytes(buffer[_IN.size : size]))

    def _answer(self, device: int, unique: int, verb: int, node: int, body: bytes) -> None:
        number, told = 0, b""
        try:
            handler = self._verbs.get(verb)
            if handler is None:
                raise _Refused(errno.EOPNOTSUPP if verb == 43 else errno.ENOSYS)
            told = handler(node, body)
        except _Refused as refused:
            number = refused.number
        os.write(device, _OUT.pack(_OUT.size + len(told), -number, unique) + told)

    def _record(self, kind: Kind, offset: int = 0, data: bytes = b"") -> None:
        self._log.write(_RECORD.pack(kind, offset, len(data)) + data)

    def _attributes(self, node: int) -> bytes:
        mode = stat.S_IFDIR | 0o700 if node == _ROOT else stat.S_IFREG | 0o600
        size = self._size if node == _DISK else 0
        return _ATTRIBUTES.pack(node, size, size // 512, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)

    def _begin(self, _node: int, body: bytes) -> bytes:
        del body
        return _INIT.pack(7, 31, 0, _BIG_WRITES, 16, 12, _WRITE_MAX, 1, 0, 0, *([0] * 8))

    def _look_up(self, _node: int, body: bytes) -> bytes:
        node = _NAMES.get(body.rstrip(b"\0"))
        if node is None:
            raise _Refused(errno.ENOENT)
        return _ENTRY.pack(node, 0, _FOREVER_S, _FOREVER_S, 0, 0) + self._attributes(node)

    def _tell_attributes(self, node: int, body: bytes) -> bytes:
        del body
        return _TIMES.pack(_FOREVER_S, 0, 0) + self._attributes(node)

    def _open(self, node: int, body: bytes) -> bytes:
        del body
        return struct.pack("<QII", 0, _DIRECT_IO if node == _MARKS else _KEEP_CACHE, 0)

    def _read(self, node: int, body: bytes) -> bytes:
        _handle, offset, size = _READ.unpack_from(body)
        return os.pread(self._image, size, offset) if node == _DISK else b""

    def _write(self, node: int, body: bytes) -> bytes:
        _handle, offset, size, *_rest = _WRITE.unpack_from(body)
        data = body[_WRITE.size : _WRITE.size + size]
        if node == _MARKS:
            self._record(Kind.MARK, 0, data)
        else:
            os.pwrite(self._image, data, offset)
            self._record(Kind.WRITE, offset, data)
        return struct.pack("<II", size, 0)

    def _flush(self, node: int, body: bytes) -> bytes:
        del body
        if node == _DISK:
            self._record(Kind.FLUSH)
        return b""


def main() -> None:
    image, mountpoint, log = map(Path, sys.argv[1:])
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0"
    if libc.mount(b"sandlot-power", bytes(mountpoint), b"fuse", _MS_NOSUID_NODEV, options.encode()):
        raise OSError(ctypes.get_errno(), "fuse cannot be mounted")
    print("ready", flush=True)
    with log.open("wb") as file:
        Recorder(image, file).serve(device)


if __name__ == "__main__":
    main()
