"""Who listens on a port of this machine, as the kernel tells it."""

import os
import socket
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

_LISTENS = "0A"
_TABLES = ((socket.AF_INET, "/proc/self/net/tcp"), (socket.AF_INET6, "/proc/self/net/tcp6"))
_WORD_CHARS = 8  # of an address, in the order of the machine


class Listener(NamedTuple):
    family: int
    address: str  # where a connection reaches it
    inode: int


def find_listeners(pids: Collection[int], port: int) -> Sequence[Listener]:
    """Blocking: sockets that these processes listen with on a port, but for addresses that others listen on as well."""
    there = [listener for family, table in _TABLES for listener in _listening(family, table, port)]
    if not there:
        return ()
    theirs = _sockets(pids)
    shared = {(one.family, one.address) for one in there if one.inode not in theirs}
    return tuple(one for one in there if one.inode in theirs and (one.family, one.address) not in shared)


def _listening(family: int, table: str, port: int) -> Iterable[Listener]:
    with suppress(OSError), open(table, encoding="ascii", errors="replace") as rows:
        next(rows, None)
        for row in rows:
            fields = row.split()
            address, _, number = fields[1].rpartition(":")
            if fields[3] == _LISTENS and int(number, 16) == port:
                yield Listener(family, _reached(family, address), int(fields[9]))


def _reached(family: int, text: str) -> str:
    words = (text[at : at + _WORD_CHARS] for at in range(0, len(text), _WORD_CHARS))
    address = socket.inet_ntop(family, b"".join(int(word, 16).to_bytes(4, "little") for word in words))
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address)


def _sockets(pids: Collection[int]) -> set[int]:
    found: set[int] = set()
    for pid in pids:
        with suppress(OSError):  # it has ended
            for fd in os.listdir(f"/proc/{pid}/fd"):
                with suppress(OSError, ValueError):
                    kind, _, inode = os.readlink(f"/proc/{pid}/fd/{fd}").partition(":[")
                    if kind == "socket":
                        found.add(int(inode.rstrip("]")))
    return found
