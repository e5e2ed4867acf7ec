"""Has an archive unpacked by a process that can do nothing else, and hears what became of it."""

import asyncio
import ctypes
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from sandlot.host.storage.canonical import CANONICAL_ID, RANGE_IDS
from sandlot.model import InvalidArgument, SandlotError, TemplateStep, Unavailable, limits

_CHILD: Final = "sandlot.host.templates.unpacking.child"
_LINE_BYTES_MAX: Final = 1 << 20
_WORDS_KEPT: Final = 2000
_OPEN_TREE, _MOUNT_SETATTR = 428, 442
_CLONE, _CLOEXEC, _EMPTY_PATH = 1, os.O_CLOEXEC, 0x1000
_NOSUID, _NODEV, _NOEXEC = 2, 4, 8
_PRIVATE = 1 << 18


class _MountAttributes(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns"))


@dataclass(frozen=True, slots=True)
class Unpacked:
    """What the process says it has made. It has read what strangers wrote: its words are checked like theirs."""

    config: Mapping[str, Any]
    diff_ids: list[str]
    entries: int
    size_bytes: int
    left_out: Mapping[str, int]


def _clone_tree(path: Path) -> int:
    """A mount of the directory alone, attached nowhere."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.syscall(_OPEN_TREE, -100, os.fsencode(path), _CLONE | _CLOEXEC)
    if fd < 0:
        raise OSError(ctypes.get_errno(), "open_tree", str(path))
    attributes = _MountAttributes(_NOSUID | _NODEV | _NOEXEC, 0, _PRIVATE, 0)
    size = ctypes.sizeof(attributes)
    if libc.syscall(_MOUNT_SETATTR, fd, b"", _EMPTY_PATH, ctypes.byref(attributes), size) < 0:
        number = ctypes.get_errno()
        os.close(fd)
        raise OSError(number, "mount_setattr", str(path))
    return fd


async def unpack(
    files: Mapping[str, int],
    into: Path,
    reference: str,
    free_min: int,
    tell: Callable[[TemplateStep], None],
    program: Sequence[str] = (),
) -> Unpacked:
    """`files`: descriptors by name; `archive` is one file, else they are those of an image layout. `into` is an empty
    directory, which belongs to user 0 of sessions then. `program`: another that is to be confined.

    Raises InvalidArgument with the reason of a refusal, Unavailable."""
    total = sum(os.fstat(fd).st_size for fd in files.values())
    try:
        os.chown(into, CANONICAL_ID, CANONICAL_ID)
        os.chmod(into, 0o755)
        tree = _clone_tree(into)
    except OSError as error:
        raise Unavailable(f"a template cannot be unpacked here: {error.strerror}", next_step="run as root") from error
    try:
        request = {
            "files": dict(files),
            "tree": tree,
            "reference": reference,
            "bounds": {
                "bytes_max": limits.TEMPLATE_BYTES_MAX,
                "entries_max": limits.TEMPLATE_ENTRIES_MAX,
                "ratio_max": limits.TEMPLATE_RATIO_MAX,
                "depth_max": limits.TEMPLATE_DEPTH_MAX,
                "free_min": free_min,
            },
        }
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", *(program or ("-m", _CHILD, str(os.getpid())))),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            pass_fds=(*files.values(), tree),
            limit=_LINE_BYTES_MAX,
            env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
            cwd="/",
        )
    finally:
        os.close(tree)
    try:
        return await _converse(process, request, total, tell)
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
        await process.wait()


async def _converse(
    process: asyncio.subprocess.Process, request: Mapping[str, Any], total: int, tell: Callable[[TemplateStep], None]
) -> Unpacked:
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        while True:
            async with asyncio.timeout(limits.TEMPLATE_STALL_S):
                line = await process.stdout.readline()
            match cast("dict[str, Any]", _parse(line)):
                case {"state": "unshared"}:
                    _map_ids(process.pid)
                    process.stdin.write(json.dumps(request).encode() + b"\n")
                case {"progress": {"entries": int(entries), "read": int(read)}}:
                    tell(TemplateStep("unpacking", min(read, total), total, entries))
                case {"refused": str(reason)}:
                    raise InvalidArgument(f"it cannot be a template: {reason[:_WORDS_KEPT]}")
                case {"done": done}:
                    return _read(done)
                case _:
                    said = (await process.stderr.read(_WORDS_KEPT)).decode(errors="replace").strip()
                    raise Unavailable(
                        f"what unpacks templates ended: {said.rpartition(chr(10))[2] or 'without a word'}"
                    )
    except SandlotError:
        raise
    except TimeoutError:
        raise Unavailable("unpacking made no progress and was given up", next_step="look at the disk") from None
    except (OSError, ValueError) as error:
        raise Unavailable(f"what unpacks templates cannot be understood: {error}") from error


def _parse(line: bytes) -> object:
    try:
        return json.loads(line) if line else None
    except (ValueError, RecursionError):
        return None


def _map_ids(pid: int) -> None:
    for name in ("uid_map", "gid_map"):
        fd = os.open(f"/proc/{pid}/{name}", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, f"0 {CANONICAL_ID} {RANGE_IDS}\n".encode())
        finally:
            os.close(fd)


def _read(done: Any) -> Unpacked:
    """Raises ValueError."""
    match cast("dict[str, Any]", done):
        case {"config": config, "diff_ids": listed, "left_out": out, "entries": int(entries), "bytes": int(size)}:
            if isinstance(config, dict) and isinstance(listed, list) and isinstance(out, dict):
                counts = cast("dict[object, object]", out).items()
                return Unpacked(
                    cast("dict[str, Any]", config),
                    [str(one)[:100] for one in cast("list[object]", listed)],
                    entries,
                    size,
                    {str(name)[:100]: count for name, count in counts if isinstance(count, int)},
                )
        case _:
            pass
    raise ValueError("it does not tell what it has made")
