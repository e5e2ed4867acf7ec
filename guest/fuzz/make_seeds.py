"""Writes the seeds of the fuzzer: a few small inputs that reach far. Run it again when the wire changes.

The first byte of an input chooses what is fuzzed: 0 a message, 1 the payload of a SPAWN, 2 a ring, 3 a SPAWN
built around its limits.
"""

import struct
from pathlib import Path

from sandlot.contracts import SpawnPlan
from sandlot.host.runtimes import frames
from sandlot.host.runtimes.frames import Frame
from sandlot.model import Stream, TerminalSize

SEEDS = Path(__file__).parent / "seeds"
MESSAGE, SPAWN, RING, BUILT = b"\0", b"\1", b"\2", b"\3"

PLAIN = SpawnPlan(argv=("true",), cwd="", envs={}, user="")
FAMILY = SpawnPlan(argv=("true",), cwd="", envs={}, user="", is_family=True)
CONNECT = SpawnPlan(argv=("8000",), cwd="/", envs={}, user="", stdin=True, is_connection=True)
FULL = SpawnPlan(
    argv=("sh", "-c", "echo $A", "\udcff"),
    cwd="/workspace",
    envs={"PATH": "/usr/bin:/bin", "A": "b"},
    user="1000:1000",
    stdin=True,
    terminal=TerminalSize(24, 80),
    tag=b'["c-1",0.0]',
)


def payload(plan: SpawnPlan) -> bytes:
    return frames.spawn(1, plan)[frames.HEADER.size :]


def with_limits(plan: SpawnPlan) -> bytes:
    """The host sends no rlimits, but a guest reads them: two of them, put behind the fixed part."""
    plain = payload(plan)
    limits = b"".join(frames.U32.pack(kind) + frames.U64.pack(64) * 2 for kind in (7, 1))
    return plain[:16] + frames.U32.pack(2) + plain[20:24] + limits + plain[24:]


def ring(limit: int, *operations: int) -> bytes:
    return RING + bytes([limit, *operations])


def built(argc: int, envc: int, tag: int, limits: int, flags: int) -> bytes:
    return BUILT + struct.pack("<HHHBBB", argc, envc, tag, limits, flags, 2) + b"text"


def seeds() -> dict[str, bytes]:
    small = [
        frames.resume(bytes(range(16))),
        frames.stdin(1, 5, b"input"),
        frames.frame(Frame.STDIN_END, 1),
        frames.signal(1, 15, frames.SCOPE_TREE),
        frames.signal(1, 9, frames.SCOPE_END),
        frames.resize(1, 24, 80),
        frames.ack(1, Stream.STDERR, 4096),
        frames.discard(1, Stream.STDOUT),
        frames.frame(Frame.RELEASE, 1),
        frames.frame(Frame.PING, 0, frames.U64.pack(7)),
    ]
    return {
        "message-all": MESSAGE + b"".join(small),
        "message-spawn": MESSAGE + frames.spawn(1, FULL) + frames.spawn(2, PLAIN),
        "message-torn": MESSAGE + small[0] + small[1][:-1],
        "spawn-plain": SPAWN + payload(PLAIN),
        "spawn-connect": SPAWN + payload(CONNECT),
        "spawn-full": SPAWN + payload(FULL),
        "spawn-limits": SPAWN + with_limits(FULL),
        "built-small": built(1, 1, 3, 1, 2),
        "built-largest": built(4096, 4096, 4096, 16, 3),
        "built-beyond": built(4097, 4096, 4096, 16, 3),
        "ring-small": ring(3, *(0, 200, 2, 50, 0, 255, 3, 9, 1, 200) * 8),
        "ring-large": ring(255, *(0, 255) * 40, *(2, 255, 0, 90, 3, 3) * 20, *(1, 255, 0, 255)),
    }


def main() -> None:
    SEEDS.mkdir(exist_ok=True)
    for name, data in seeds().items():
        (SEEDS / name).write_bytes(data)


if __name__ == "__main__":
    main()
