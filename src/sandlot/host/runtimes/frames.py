"""Frames between host and guest as bytes: pure, no sockets. The prose is `docs/protocol.md`, the twin is
`guest/src/wire.h`."""

import os
import struct
from collections.abc import Iterator
from enum import IntEnum
from resource import RLIMIT_NOFILE

from sandlot.contracts.runtime import ProcessEnd, SpawnPlan
from sandlot.model import LimitReached, Stream, limits

VERSION = 5
GROUPS_SINCE = 2
COUNT_SINCE = PROBE_SINCE = 3
CONNECT_SINCE = 4
FAMILY_SINCE = 5
MESSAGE_BYTES_MAX = 256 * 1024
STDIN_CREDIT = 64 * 1024
NONCE_BYTES = 16

HEADER = struct.Struct("<IBBHQ")
U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")
_TWO_U32 = struct.Struct("<II")
_WELCOME = struct.Struct("<16sII")
_LISTING = struct.Struct("<IIQQQ")
EXIT = struct.Struct("<iIQQQQQ")
STDIN_ACK = struct.Struct("<QI")
_COUNT = struct.Struct("<QI")
_SPAWN = struct.Struct("<IHHIIII")
_RLIMIT = struct.Struct("<IQQ")
_SIZE = struct.Struct("<HH")


class Frame(IntEnum):
    RESUME = 1
    SPAWN = 2
    STDIN = 3
    STDIN_END = 4
    SIGNAL = 5
    RESIZE = 6
    ACK = 7
    DISCARD = 8
    RELEASE = 9
    PING = 10
    COUNT = 11
    LIMIT = 12
    PART = 13
    WELCOME = 65
    PROCESS = 66
    SYNCED = 67
    STARTED = 68
    FAILED = 69
    DATA = 70
    EXIT = 71
    STDIN_ACK = 72
    PONG = 73
    BROKEN = 74
    BOOT_FAILED = 75
    COUNTED = 76


STREAMS = (Stream.STDOUT, Stream.STDERR)
STREAM_NUMBERS = {Stream.STDOUT: 0, Stream.STDERR: 1}
STAGES = {
    1: "duplicate", 2: "too many", 3: "resources", 4: "user", 5: "rlimit", 6: "cwd", 7: "exec", 8: "terminal",
}  # fmt: skip
SCOPE_GROUP, SCOPE_TREE, SCOPE_END = 0, 1, 3
PROCESS_OVER = 2 | 4  # it has exited, or could not be started
SPAWN_PTY, SPAWN_STDIN, SPAWN_GROUPS, SPAWN_PROBE, SPAWN_CONNECT, SPAWN_FAMILY = 1, 2, 4, 8, 16, 32


class MalformedFrame(ValueError):
    """A guest sent what no guest of ours sends. It is treated as lost: nothing it says can be trusted."""


def split(message: memoryview) -> Iterator[tuple[int, int, int, memoryview]]:
    """The frames of one message: type, flags, id, payload."""
    at, end = 0, len(message)
    while at < end:
        if end - at < HEADER.size:
            raise MalformedFrame("a message ends inside a header")
        length, kind, flags, zero, ident = HEADER.unpack_from(message, at)
        at += HEADER.size
        if zero or length > end - at:
            raise MalformedFrame("a frame is longer than its message")
        yield kind, flags, ident, message[at : at + length]
        at += length


def frame(kind: Frame, ident: int = 0, payload: bytes = b"", flags: int = 0) -> bytes:
    return HEADER.pack(len(payload), kind, flags, 0, ident) + payload


def resume(nonce: bytes) -> bytes:
    return frame(Frame.RESUME, 0, nonce + U32.pack(VERSION))


def spawn(ident: int, plan: SpawnPlan) -> bytes:
    """Raises LimitReached when arguments and environment do not fit into one message."""
    flags = (SPAWN_PTY if plan.terminal else 0) | (SPAWN_STDIN if plan.stdin else 0)
    flags |= (SPAWN_GROUPS if plan.groups else 0) | (SPAWN_PROBE if plan.is_probe else 0)
    flags |= (SPAWN_CONNECT if plan.is_connection else 0) | (SPAWN_FAMILY if plan.is_family else 0)
    rows, columns = (plan.terminal.rows, plan.terminal.columns) if plan.terminal else (0, 0)
    envs = [f"{name}={value}" for name, value in plan.envs.items()]
    text = os.fsencode("\0".join([plan.user, plan.cwd, *plan.argv, *envs, ""]))
    limits.at_most("bytes of arguments and environment", len(text), limits.COMMAND_BYTES_MAX)
    limits.at_most("environment variables", len(plan.envs), limits.ARGUMENTS_MAX)
    rlimits = b"" if plan.open_files is None else _RLIMIT.pack(RLIMIT_NOFILE, plan.open_files, plan.open_files)
    count = len(rlimits) // _RLIMIT.size
    head = _SPAWN.pack(flags, rows, columns, len(plan.argv), len(plan.envs), count, len(plan.tag))
    if len(plan.tag) > 4096:
        raise LimitReached("the tag of a process is longer than 4096 bytes", limit="tag")
    return frame(Frame.SPAWN, ident, head + rlimits + plan.tag + text)


def stdin(ident: int, offset: int, data: bytes) -> bytes:
    return frame(Frame.STDIN, ident, U64.pack(offset) + data)


def signal(ident: int, number: int, scope: int) -> bytes:
    return frame(Frame.SIGNAL, ident, _TWO_U32.pack(number, scope))


def count(token: int, *, end: bool) -> bytes:
    return frame(Frame.COUNT, 0, _COUNT.pack(token, end))


def part(token: int) -> bytes:
    return frame(Frame.PART, 0, U64.pack(token))


def limit(processes: int) -> bytes:
    """0: any number."""
    return frame(Frame.LIMIT, 0, U64.pack(processes))


def read_counted(payload: memoryview) -> tuple[int, int]:
    """The token, and how many processes there are but the guest."""
    token, processes = _unpack(_COUNT, payload)
    return token, processes


def resize(ident: int, rows: int, columns: int) -> bytes:
    return frame(Frame.RESIZE, ident, _SIZE.pack(rows, columns))


def ack(ident: int, stream: Stream, offset: int) -> bytes:
    return frame(Frame.ACK, ident, U64.pack(offset), STREAM_NUMBERS[stream])


def discard(ident: int, stream: Stream) -> bytes:
    return frame(Frame.DISCARD, ident, b"", STREAM_NUMBERS[stream])


def read_welcome(payload: memoryview) -> tuple[bytes, int, int]:
    """Nonce, version of the guest, number of processes."""
    return _unpack(_WELCOME, payload)  # pyright: ignore[reportReturnType]


def read_listing(payload: memoryview) -> tuple[int, int, int, int, int, bytes]:
    """Pid, flags, first kept offset of stdout and stderr, stdin taken, tag."""
    if len(payload) < _LISTING.size:
        raise MalformedFrame("a listing is too short")
    pid, flags, out, err, taken = _LISTING.unpack_from(payload)
    return pid, flags, out, err, taken, bytes(payload[_LISTING.size :])


def read_failed(payload: memoryview) -> tuple[int, str]:
    error, stage = _unpack(_TWO_U32, payload)
    return error, STAGES.get(stage, f"stage {stage}")


def _unpack(form: struct.Struct, payload: memoryview) -> tuple[int, ...]:
    if len(payload) != form.size:
        raise MalformedFrame(f"a payload has {len(payload)} bytes instead of {form.size}")
    return form.unpack(payload)


def read_exit(payload: memoryview) -> ProcessEnd:
    return ProcessEnd._make(_unpack(EXIT, payload))


def read_stdin_ack(payload: memoryview) -> tuple[int, int]:
    return _unpack(STDIN_ACK, payload)  # pyright: ignore[reportReturnType]


def read_data(flags: int, payload: memoryview) -> tuple[Stream, int, bytes]:
    if flags >= len(STREAMS) or len(payload) < U64.size:
        raise MalformedFrame("output without a stream or an offset")
    return STREAMS[flags], U64.unpack_from(payload)[0], bytes(payload[U64.size :])


def read_u32(payload: memoryview) -> int:
    return _unpack(U32, payload)[0]
