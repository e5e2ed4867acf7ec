"""Datasets, snapshots, pools and streams of ZFS, by its own command line: there is no other way in.

Every name is checked, nothing goes through a shell, every command has a deadline and ends when its caller does. Safe
for concurrent use: what is in common lies in ZFS.
"""

import asyncio
import contextlib
import fcntl
import logging
import os
import shutil
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sandlot.host.storage import zfs_daemon
from sandlot.host.storage import zfs_words as words
from sandlot.host.storage.zfs_words import DatasetInfo, PoolStatus, SnapshotInfo, Space
from sandlot.model import CapabilityNotSupported, DeadlineExceeded, NotFound, Unavailable

_log = logging.getLogger("sandlot.host")
_METADATA_S = 30.0
_TRANSFER_S = 600.0
_PIECE_BYTES = 1 << 20
_TOLD_MAX = 64 << 10  # of what a command complains
_PLACES = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PAUSE_S = 0.002
_MOUNT_LOCK = "/run/sandlot-zfs-mounts.lock"
_MOUNTING = frozenset({"create", "clone", "mount", "import", "export", "destroy", "rollback", "receive"})
# zfs-fuse waits for every disk of the machine before it destroys something; what it destroys does not need that.
_SYNCING = frozenset({"destroy", "rollback"})
_WITHOUT_SYNC = zfs_daemon.without_sync()
_ENVIRONMENT = {"PATH": _PLACES, "LC_ALL": "C", "TZ": "UTC"}
INSTALL = "install zfsutils-linux with its kernel module, or zfs-fuse"


@dataclass(frozen=True, slots=True)
class Stream:
    """What is sent. Without `since`, all of it."""

    snapshot: str
    since: str = ""
    raw: bool = False
    compressed: bool = False
    large_blocks: bool = False


class ZfsManager:
    def __init__(self, zfs: str | None = None, zpool: str | None = None) -> None:
        self._zfs = zfs or shutil.which("zfs", path=_PLACES)
        self._zpool = zpool or shutil.which("zpool", path=_PLACES)
        self._lacks: set[str] = set()  # flags that this zfs was found not to know

    @property
    def is_installed(self) -> bool:
        return self._zfs is not None and self._zpool is not None

    # ---- datasets ----------------------------------------------------------------------------------------------

    async def create(self, name: str, properties: Mapping[str, str] | None = None) -> None:
        """Raises InvalidArgument, Conflict, LimitReached, Unavailable, as all that follow, and NotFound."""
        await self._run("zfs", "create", *_options(properties), words.check_dataset(name))

    async def clone(self, snapshot: str, name: str, properties: Mapping[str, str] | None = None) -> None:
        what = (words.check_snapshot(snapshot), words.check_dataset(name))
        await self._run("zfs", "clone", *_options(properties), *what)

    async def promote(self, name: str) -> None:
        await self._run("zfs", "promote", words.check_dataset(name))

    async def destroy(self, name: str, *, recursive: bool = False, clones: bool = False, force: bool = False) -> None:
        """`clones`: and all that was made from it."""
        flags = [flag for flag, wanted in (("-r", recursive), ("-R", clones), ("-f", force)) if wanted]
        await self._run("zfs", "destroy", *flags, words.check_dataset(name))

    async def mount(self, name: str) -> None:
        await self._run("zfs", "mount", words.check_dataset(name))

    async def set(self, name: str, key: str, value: str) -> None:
        """Of a dataset, or of a snapshot where `@` is in the name."""
        check = words.check_snapshot if "@" in name else words.check_dataset
        await self._run("zfs", "set", words.check_property(key, value), check(name))

    async def mountpoint(self, name: str) -> str:
        return (await self._run("zfs", "get", "-H", "-o", "value", "mountpoint", words.check_dataset(name))).strip()

    async def info(self, name: str) -> DatasetInfo:
        keys = "mountpoint,used,available,referenced,origin,creation"
        told = await self._run("zfs", "get", "-H", "-p", "-o", "value", keys, words.check_dataset(name))
        lines = told.splitlines()
        if len(lines) != 6:
            raise Unavailable(f"zfs told {len(lines)} of 6 properties of {name}")
        return _dataset(name, *lines)

    async def list_datasets(self, parent: str) -> Sequence[DatasetInfo]:
        keys = ("mountpoint", "used", "available", "referenced", "origin", "creation")
        told = await self.properties(parent, keys, snapshots=False)
        return [_dataset(name, *(found[key] for key in keys)) for name, found in told.items()]

    async def properties(
        self, parent: str, keys: Sequence[str], *, snapshots: bool = True
    ) -> Mapping[str, Mapping[str, str]]:
        """Of a dataset and all below it, in one command; sizes and times are plain numbers. `-` where it has none."""
        # `zfs list` of zfs-fuse rounds; its `zfs get` can be asked not to.
        told = await self._run(
            "zfs", "get", "-r", "-H", "-p", "-o", "name,property,value", ",".join(keys), words.check_dataset(parent)
        )
        found: dict[str, dict[str, str]] = {}
        for line in told.splitlines():
            name, key, value = line.split("\t", 2)
            if snapshots or "@" not in name:
                found.setdefault(name, {})[key] = value
        return {name: {key: values.get(key, "-") for key in keys} for name, values in found.items()}

    async def exists(self, name: str) -> bool:
        check = words.check_snapshot if "@" in name else words.check_dataset
        kind = "snapshot" if "@" in name else "filesystem,volume"
        try:
            await self._run("zfs", "list", "-H", "-t", kind, "-o", "name", check(name))
        except NotFound:
            return False
        return True

    # ---- snapshots ---------------------------------------------------------------------------------------------

    async def snapshot(self, name: str, properties: Mapping[str, str] | None = None) -> None:
        await self._run("zfs", "snapshot", *_options(properties), words.check_snapshot(name))

    async def rollback(self, name: str, *, newer: bool = False) -> None:
        """`newer`: snapshots after this one go."""
        await self._run("zfs", "rollback", *(["-r"] if newer else []), words.check_snapshot(name))

    async def list_snapshots(self, dataset: str) -> Sequence[SnapshotInfo]:
        """Oldest first, of this dataset alone."""
        keys = ("used", "referenced", "creation", "userrefs", "createtxg")
        told = await self.properties(dataset, keys)
        found: list[tuple[int, SnapshotInfo]] = []
        for name, values in told.items():
            owner, at, short = name.partition("@")
            if at and owner == dataset:
                numbers = [words.read_size(values[key]) for key in keys]
                found.append((numbers[4] or len(found), SnapshotInfo(short, owner, *numbers[:4])))
        return [info for _order, info in sorted(found, key=lambda pair: (pair[1].created, pair[0]))]

    async def destroy_snapshot(self, name: str, *, later: bool = False) -> None:
        """`later`: where something holds it or was made from it, it goes when that does."""
        await self._run("zfs", "destroy", *(["-d"] if later else []), words.check_snapshot(name))

    async def hold(self, tag: str, name: str) -> None:
        await self._run("zfs", "hold", words.check_short("tag", tag), words.check_snapshot(name))

    async def release(self, tag: str, name: str) -> None:
        await self._run("zfs", "release", words.check_short("tag", tag), words.check_snapshot(name))

    # ---- pools -------------------------------------------------------------------------------------------------

    async def create_pool(self, pool: str, *devices: str, mirror: bool = False) -> None:
        """Not mounted, not remembered by the machine, and a device that fails is an error instead of a wait."""
        options = ("-f", "-m", "none", "-o", "cachefile=none", "-o", "failmode=continue")
        kind = ["mirror"] if mirror else []
        await self._run("zpool", "create", *options, words.check_pool(pool), *kind, *map(words.check_path, devices))

    async def destroy_pool(self, pool: str) -> None:
        """Not by force: that tears connections of zfs-fuse away under files that are open, and it never ends then."""
        await self._run("zpool", "destroy", words.check_pool(pool))

    async def import_pool(self, pool: str, folder: str) -> None:
        words.check_pool(pool)
        await self._run("zpool", "import", "-f", "-o", "cachefile=none", "-d", words.check_path(folder), pool)

    async def export_pool(self, pool: str) -> None:
        await self._run("zpool", "export", words.check_pool(pool))

    async def pools(self) -> Sequence[str]:
        return (await self._run("zpool", "list", "-H", "-o", "name")).split()

    async def status(self, pool: str) -> PoolStatus:
        return words.read_status(pool, await self._run("zpool", "status", words.check_pool(pool)))

    async def space(self, pool: str) -> Space:
        """State and space by one command."""
        keys = "name,size,allocated,free,capacity,health"
        if "fragmentation" not in self._lacks:
            try:
                return words.read_space(await self._list_pool("-p", f"{keys},fragmentation", pool))
            except Unavailable as error:
                if "too old" not in error.next_step:
                    raise
                self._lacks.add("fragmentation")
        return words.read_space(await self._list_pool("", keys, pool))

    async def _list_pool(self, flag: str, keys: str, pool: str) -> str:
        flags = [flag] if flag else []
        return (await self._run("zpool", "list", "-H", *flags, "-o", keys, words.check_pool(pool))).rstrip("\n")

    # ---- streams -----------------------------------------------------------------------------------------------

    async def estimate(self, stream: Stream) -> int:
        """Bytes that sending would take. Where zfs cannot tell beforehand, what the snapshot refers to: all of it is
        an upper bound of a part."""
        if "estimate" not in self._lacks:
            try:
                command = ("zfs", "send", "-n", "-P", *_sending(stream))
                told = await self._run(*command, deadline_s=_TRANSFER_S, both=True)
                sizes = [line.split()[1] for line in told.splitlines() if line.startswith("size")]
                if sizes:
                    return words.read_size(sizes[0])
            except Unavailable as error:
                if "too old" not in error.next_step:
                    raise
            self._lacks.add("estimate")
        dataset = stream.snapshot.partition("@")[0]
        found = {info.name: info for info in await self.list_snapshots(dataset)}
        short = stream.snapshot.partition("@")[2]
        if short not in found:
            raise NotFound(f"there is no snapshot {stream.snapshot}")
        return found[short].referenced

    @contextlib.asynccontextmanager
    async def sending(self, stream: Stream) -> AsyncGenerator[AsyncIterator[bytes]]:
        """The stream in pieces. Leaving early ends the command; a stream that fails says so at its end."""
        async with self._child("zfs", "send", *_sending(stream)) as child:
            yield _pieces(child, f"zfs send {stream.snapshot}")

    async def send_to(self, stream: Stream, path: Path) -> int:
        """To a file that must not be there. What is told is how many bytes; a stream that fails leaves no file."""
        total = 0
        file = await asyncio.to_thread(path.open, "xb")
        try:
            async with self.sending(stream) as pieces:
                async for piece in pieces:
                    await asyncio.to_thread(file.write, piece)
                    total += len(piece)
        except BaseException:  # undone, then raised again
            file.close()
            path.unlink(missing_ok=True)
            raise
        file.close()
        return total

    async def receive(self, name: str, pieces: AsyncIterable[bytes], *, overwrite: bool = False) -> None:
        """`overwrite`: what the dataset holds that the stream has not is lost; whoever calls decides."""
        flags = ["-F"] if overwrite else []
        check = words.check_snapshot if "@" in name else words.check_dataset
        async with _one_at_a_time(_TRANSFER_S), self._child("zfs", "receive", *flags, check(name)) as child:
            assert child.stdin is not None
            complaints = asyncio.ensure_future(_read_some(child.stderr))
            with contextlib.suppress(ConnectionError):  # it has ended; its own words say why
                async for piece in pieces:
                    child.stdin.write(piece)
                    await child.stdin.drain()
                child.stdin.close()
                await child.stdin.wait_closed()
            told = await complaints
            if code := await child.wait():
                raise words.classify(f"zfs receive {name}", code, told)

    # ---- commands ----------------------------------------------------------------------------------------------

    async def _run(self, program: str, *arguments: str, deadline_s: float = _METADATA_S, both: bool = False) -> str:
        """What it told; `both`: what it complained too, where some tell it there."""
        what = f"{program} {arguments[0]}"
        begun = time.monotonic()
        async with contextlib.AsyncExitStack() as stack:
            if arguments[0] in _MOUNTING:
                await stack.enter_async_context(_one_at_a_time(deadline_s))
            child = await stack.enter_async_context(self._child(program, *arguments, deadline_s=deadline_s))
            out, err = await child.communicate()
            code = child.returncode or 0
        told = err.decode(errors="replace")[:_TOLD_MAX]
        _log.debug(
            "%s %s: code %d in %.3f s: %s", program, " ".join(arguments), code, time.monotonic() - begun, told.strip()
        )
        if code:
            raise words.classify(what, code, told)
        return out.decode(errors="replace") + (told if both else "")

    @contextlib.asynccontextmanager
    async def _child(
        self, program: str, *arguments: str, deadline_s: float = _TRANSFER_S
    ) -> AsyncGenerator[asyncio.subprocess.Process]:
        path = self._zfs if program == "zfs" else self._zpool
        if path is None:
            raise CapabilityNotSupported(f"there is no program {program}", next_step=INSTALL)
        pipe = asyncio.subprocess.PIPE
        try:
            child = await asyncio.create_subprocess_exec(
                path,
                *arguments,
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                env=_ENVIRONMENT,
                start_new_session=True,
                preexec_fn=_WITHOUT_SYNC if arguments[0] in _SYNCING and os.geteuid() == 0 else None,
            )
        except OSError as error:
            raise Unavailable(f"{program} cannot be run: {error.strerror}") from error
        try:
            async with asyncio.timeout(deadline_s):
                yield child
        except TimeoutError:
            told = f"{program} {arguments[0]} took longer than {deadline_s:g} s"
            raise DeadlineExceeded(told, next_step="see whether the pool is well: `zpool status`") from None
        finally:
            await _end(child)


@contextlib.asynccontextmanager
async def _one_at_a_time(deadline_s: float) -> AsyncGenerator[None]:
    """On this machine: the daemon of zfs-fuse stops serving files when it is asked for two mounts at once."""
    try:
        fd = os.open(_MOUNT_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        yield  # not root: nothing will be mounted
        return
    try:
        until = time.monotonic() + deadline_s
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise DeadlineExceeded("another engine on this machine keeps zfs to itself") from None
                await asyncio.sleep(_PAUSE_S)
        yield
    finally:
        os.close(fd)


async def _end(child: asyncio.subprocess.Process) -> None:
    """One that waits for a disk cannot be ended at once; it is not waited for."""
    if child.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await asyncio.shield(asyncio.ensure_future(child.wait()))


async def _pieces(child: asyncio.subprocess.Process, what: str) -> AsyncIterator[bytes]:
    assert child.stdout is not None
    complaints = asyncio.ensure_future(_read_some(child.stderr))
    while piece := await child.stdout.read(_PIECE_BYTES):
        yield piece
    told = await complaints
    if code := await child.wait():
        raise words.classify(what, code, told)


async def _read_some(stream: asyncio.StreamReader | None) -> str:
    """All is read, so that nobody waits for us; the beginning is kept."""
    assert stream is not None
    kept = b""
    while piece := await stream.read(_PIECE_BYTES):
        kept = (kept + piece)[:_TOLD_MAX]
    return kept.decode(errors="replace")


def _options(properties: Mapping[str, str] | None) -> list[str]:
    pairs = sorted((properties or {}).items())
    return [word for key, value in pairs for word in ("-o", words.check_property(key, value))]


def _sending(stream: Stream) -> list[str]:
    flags = [("-w", stream.raw), ("-c", stream.compressed), ("-L", stream.large_blocks)]
    since = ["-i", words.check_snapshot(stream.since)] if stream.since else []
    return [*(flag for flag, wanted in flags if wanted), *since, words.check_snapshot(stream.snapshot)]


def _dataset(name: str, *fields: str) -> DatasetInfo:
    mountpoint, used, available, referenced, origin, created = fields
    sizes = (words.read_size(used), words.read_size(available), words.read_size(referenced))
    return DatasetInfo(name, mountpoint, *sizes, "" if origin == "-" else origin, words.read_size(created))
