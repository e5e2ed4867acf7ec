"""Instances that are programs on this machine, each with a directory and a port of its own.

What is known of them is in their directories, and what they are is asked of the kernel: a lock that the program holds
as long as it lives, and who has its files open. So nothing is lost when the provisioner is killed, wherever that is:
the next one finds each instance, and a verb that was not finished can be said again. Instances see each other and the
machine, as its other programs do; for machines that are apart there are other provisioners.
"""

import asyncio
import fcntl
import hashlib
import os
import secrets
import shutil
import signal
import sys
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from sandlot.model import (
    CapabilityNotSupported,
    Conflict,
    DeadlineExceeded,
    Instance,
    InstanceConfig,
    InstanceFilter,
    InvalidArgument,
    InvalidState,
    LimitReached,
    NotFound,
    ProvisionerCapabilities,
    SandlotError,
    Unavailable,
    check_instance_id,
    limits,
)
from sandlot.provision.directory import (
    HOST,
    InstanceDirectory,
    Record,
    Wish,
    mounts_below,
    no_instance,
    reserve_port,
)
from sandlot.provision.holding import end_holders, signal_holders, to_its_end, wait_until
from sandlot.provision.program import exit_code, spawn

_POLL_S = 0.02
_KILLED_S = 10.0  # for what was killed to be gone


@dataclass(frozen=True, slots=True)
class LocalImage:
    """A program that serves at a port. In the words `{data}`, `{user_data}`, `{host}` and `{port}` are replaced."""

    run: tuple[str, ...]
    clean: tuple[str, ...] = ()  # run when it is terminated, to give back what it had of the machine beside its files

    def __post_init__(self) -> None:
        for words in (self.run, self.clean or self.run):
            if not words or not Path(words[0]).is_absolute():
                raise InvalidArgument("an image begins with the path of a program", next_step="give an absolute one")


def sandlot_image(python: str = sys.executable) -> LocalImage:
    """An engine that serves. User data is its file of settings, in TOML."""
    sandlot = (python, "-m", "sandlot")
    run = (*sandlot, "serve", "--config", "{user_data}", "--data-dir", "{data}", "--listen", "{host}:{port}")
    return LocalImage(run, (*sandlot, "--data-dir", "{data}", "kill", "--all", "--yes"))


class LocalProvisioner:
    """`root`: a directory of its own. Any number of these may work on the same one at once, in any number of programs;
    each is given the same images."""

    def __init__(
        self,
        root: Path,
        images: Mapping[str, LocalImage] | None = None,
        *,
        variables: Mapping[str, str] | None = None,
        instances_max: int = limits.INSTANCES_MAX,
        stop_s: float = limits.INSTANCE_STOP_S,
    ) -> None:
        self._root = root.absolute()
        self._images = {"sandlot": sandlot_image()} if images is None else dict(images)
        self._variables = dict(variables or {})
        self._instances_max = instances_max
        self._stop_s = stop_s
        self._children: set[int] = set()

    # ---- verbs -------------------------------------------------------------------------------------------------

    async def launch(self, config: InstanceConfig) -> Instance:
        self._check(config)
        place = await self._claim(config)
        async with self._at_work(place):
            record = place.read()
            if record.wish is Wish.RUNNING and record.starts == 0 and not place.is_alive():
                try:
                    await self._run(place, record)
                except (asyncio.CancelledError, SandlotError):
                    if not place.is_alive():
                        await self._remove(place)
                    raise
        return await self._look(place)

    async def terminate(self, instance_id: str) -> None:
        place = self._place(instance_id)
        with suppress(NotFound):
            async with self._at_work(place):
                record = place.read()
                await to_its_end(place.write, replace(record, wish=Wish.GONE))
                await self._end(place)
                await self._clean(place, record)
                await self._remove(place)
        await self._sweep()

    async def stop(self, instance_id: str) -> Instance:
        place = self._place(instance_id)
        async with self._at_work(place):
            record = _staying(place)
            if record.wish is not Wish.STOPPED:
                await to_its_end(place.write, replace(record, wish=Wish.STOPPED))
            await self._end(place)
        return await self._look(place)

    async def start(self, instance_id: str) -> Instance:
        place = self._place(instance_id)
        async with self._at_work(place):
            record = _staying(place)
            if record.wish is Wish.STOPPED:  # whoever stopped it may have died before it was
                await self._end(place)
            if not place.is_alive():
                await self._run(place, record)
        return await self._look(place)

    async def describe(self, instance_id: str) -> Instance:
        return await self._look(self._place(instance_id))

    async def list(self, query: InstanceFilter) -> Sequence[Instance]:
        found: list[Instance] = []
        for name in await asyncio.to_thread(self._names):
            with suppress(NotFound):  # it went meanwhile
                found.append(await self._look(InstanceDirectory(self._instances / name)))
        return sorted(filter(query.takes, found), key=lambda one: (one.launched, one.instance_id))

    async def capabilities(self) -> ProvisionerCapabilities:
        return ProvisionerCapabilities(stop=True, instances_max=self._instances_max)

    # ---- what is asked for -------------------------------------------------------------------------------------

    def _check(self, config: InstanceConfig) -> None:
        if config.image not in self._images:
            raise NotFound(f"there is no image {config.image}", next_step=f"use one of: {', '.join(self._images)}")
        if wishes := config.wishes():
            name = min(wishes)
            raise CapabilityNotSupported(
                f"instances on this machine have no {name}", next_step="leave it out", capability=name
            )

    async def _claim(self, config: InstanceConfig) -> InstanceDirectory:
        """The directory of the instance that is asked for, made now or before."""
        token = config.request_id
        name = secrets.token_hex(8) if token is None else hashlib.sha256(token.encode()).hexdigest()[:16]
        place = InstanceDirectory(self._instances / f"i-{name}")
        async with self._alone():
            if place.path.exists():
                record = place.read()
                if record.wish is Wish.GONE:
                    raise InvalidState(
                        f"instance {place.instance_id} of this request is being terminated",
                        next_step="wait for its end, or ask with another request id",
                    )
                if record.config != config:
                    raise Conflict(
                        f"request {token} was for another config, and made {place.instance_id}",
                        next_step="ask with another request id",
                    )
                return place
            if len(self._names()) >= self._instances_max:
                raise LimitReached(
                    f"there are {self._instances_max} instances, and no more are allowed",
                    next_step="terminate one",
                    limit="instances_max",
                )
            record = Record(place.instance_id, config, Wish.RUNNING, time.time())
            new = InstanceDirectory(self._root / "new" / place.instance_id)
            await to_its_end(shutil.rmtree, new.path, ignore_errors=True)
            try:
                await to_its_end(new.make, record, place.path)
            except asyncio.CancelledError:
                await self._remove(place)
                raise
        return place

    # ---- its program -------------------------------------------------------------------------------------------

    async def _run(self, place: InstanceDirectory, record: Record) -> None:
        """Held by whoever is at work. What is wanted is written before it is done, and that it was done behind it."""
        with reserve_port() as reserved:
            port = reserved.getsockname()[1]
            record = replace(record, wish=Wish.RUNNING, endpoint=f"{HOST}:{port}")
            await to_its_end(place.write, record)
            await self._spawn(
                place, self._words(place, record, self._images[record.config.image].run), reserved.fileno()
            )
        await to_its_end(place.write, replace(record, starts=record.starts + 1))

    def _words(self, place: InstanceDirectory, record: Record, words: Sequence[str]) -> tuple[str, ...]:
        host, _, port = record.endpoint.rpartition(":")
        values = {"{data}": str(place.data), "{user_data}": str(place.user_data), "{host}": host, "{port}": port}
        replaced: list[str] = []
        for word in words:
            for mark, value in values.items():
                word = word.replace(mark, value)
            replaced.append(word)
        if not os.access(replaced[0], os.X_OK):
            raise InvalidArgument(f"{replaced[0]} is no program that can be run", next_step="give another image")
        return tuple(replaced)

    async def _spawn(self, place: InstanceDirectory, words: Sequence[str], *keeps: int) -> int:
        """It holds the lock of life, its mark and its port from the moment that it exists."""
        alive = await _until_had(place.try_hold_alive, f"instance {place.instance_id} is looked at")
        mark = os.open(place.mark, os.O_RDONLY | os.O_CLOEXEC)
        try:
            pid = spawn(words, place.path, self._variables, place.log, (alive, mark, *keeps))
        finally:
            os.close(alive)
            os.close(mark)
        self._children.add(pid)
        return pid

    async def _end(self, place: InstanceDirectory) -> None:
        """TERM, a while, KILL; and then what it has left."""
        if place.is_alive():
            await signal_holders(place.mark, signal.SIGTERM)
            with suppress(DeadlineExceeded):
                await wait_until(lambda: not place.is_alive(), self._stop_s, "")
        await end_holders(_KILLED_S, place.mark, place.data)
        self._reap()

    async def _clean(self, place: InstanceDirectory, record: Record) -> None:
        """Raises Unavailable when it cannot be done; then the instance is still there, and can be terminated again."""
        image = self._images.get(record.config.image)
        if record.starts and image is not None and image.clean and place.data.exists():
            pid = await self._spawn(place, self._words(place, record, image.clean))
            code = await self._code_of(pid, place)
            await end_holders(_KILLED_S, place.data)
            if code != 0:
                raise Unavailable(
                    f"what instance {place.instance_id} had could not be given back: {place.last_words()}",
                    next_step=f"look at {place.log}, and terminate it again",
                )
        if mounted := await asyncio.to_thread(mounts_below, place.path):
            raise Unavailable(f"{mounted[0]} is still mounted", next_step="unmount it, and terminate it again")

    async def _code_of(self, pid: int, place: InstanceDirectory) -> int:
        """Of a child that is to end soon; -1 when it does not."""
        self._children.discard(pid)
        try:
            async with asyncio.timeout(limits.INSTANCE_CLEAN_S):
                while (code := exit_code(pid)) is None:  # noqa: ASYNC110 - as below
                    await asyncio.sleep(_POLL_S)
                return code
        except TimeoutError:
            return -1
        finally:
            self._children.add(pid)
            await end_holders(_KILLED_S, place.mark)

    # ---- directories -------------------------------------------------------------------------------------------

    @property
    def _instances(self) -> Path:
        return self._root / "instances"

    def _names(self) -> Sequence[str]:
        try:
            return [path.name for path in self._instances.iterdir()]
        except FileNotFoundError:
            return []

    def _place(self, instance_id: str) -> InstanceDirectory:
        return InstanceDirectory(self._instances / check_instance_id(instance_id))

    async def _look(self, place: InstanceDirectory) -> Instance:
        self._reap()
        return await asyncio.to_thread(place.look)

    async def _remove(self, place: InstanceDirectory) -> None:
        """It is gone at once; its files are, when this returns."""
        gone = self._root / "gone" / f"{place.instance_id}.{secrets.token_hex(4)}"
        place.path.rename(gone)
        await to_its_end(shutil.rmtree, gone, ignore_errors=True)

    async def _sweep(self) -> None:
        """What someone was making or removing when he died."""
        async with self._alone():
            for path in tuple((self._root / "new").iterdir()):
                await to_its_end(shutil.rmtree, path, ignore_errors=True)
        for path in tuple((self._root / "gone").iterdir()):
            if not await asyncio.to_thread(mounts_below, path):
                await to_its_end(shutil.rmtree, path, ignore_errors=True)

    def _reap(self) -> None:
        self._children = {pid for pid in self._children if exit_code(pid) is None}

    @asynccontextmanager
    async def _alone(self) -> AsyncGenerator[None]:
        """Nobody else makes an instance here meanwhile."""
        for name in ("instances", "new", "gone"):
            (self._root / name).mkdir(mode=0o700, parents=True, exist_ok=True)

        def take() -> int | None:
            fd = os.open(self._root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
                return None
            return fd

        fd = await _until_had(take, f"{self._root} is worked on")
        try:
            yield
        finally:
            os.close(fd)

    @asynccontextmanager
    async def _at_work(self, place: InstanceDirectory) -> AsyncGenerator[None]:
        """Nobody else changes this instance meanwhile."""
        fd = await _until_had(place.try_lock, f"instance {place.instance_id} is worked on by someone else")
        try:
            if not place.path.exists():  # it was removed while we waited
                raise no_instance(place.instance_id)
            yield
        finally:
            os.close(fd)


def _staying(place: InstanceDirectory) -> Record:
    record = place.read()
    if record.wish is Wish.GONE:
        raise InvalidState(f"instance {place.instance_id} is being terminated", next_step="launch another one")
    return record


async def _until_had(take: Callable[[], int | None], told: str) -> int:
    try:
        async with asyncio.timeout(limits.INSTANCE_LOCK_S):
            while (fd := take()) is None:  # noqa: ASYNC110 - the kernel tells nobody
                await asyncio.sleep(_POLL_S)
            return fd
    except DeadlineExceeded:
        raise
    except TimeoutError as error:
        raise DeadlineExceeded(f"{told}, for {limits.INSTANCE_LOCK_S:g} s", next_step="try again") from error
