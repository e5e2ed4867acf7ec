"""What every verb is given: what was asked, the settings, a screen, and an engine when it wants one."""

import argparse
import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from sandlot import registry
from sandlot.cli import values
from sandlot.cli.interruption import Interruption
from sandlot.cli.screen import Screen, TemplateProgress
from sandlot.config.remote import Remote, load_remote
from sandlot.config.settings import Settings, load
from sandlot.contracts import Host, Storage
from sandlot.model import (
    Capability,
    DataDirectoryHeld,
    Examination,
    InvalidArgument,
    Probe,
    Restored,
    RestoreRequest,
    SessionInfo,
    SessionNotFound,
    SessionSpec,
)

_RETRY_S = 0.05


class Restores(Protocol):
    """What makes a host of a backup, instead of a start."""

    async def restore(
        self, request: RestoreRequest, content: AsyncIterable[bytes], tell: Callable[[str, int, int], None]
    ) -> Restored: ...

    async def undo(self) -> None:
        """What one that was killed has left."""
        ...


class Engine(Host, Protocol):
    """A host in this process; it can also tell what its parts say of the machine."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def examine_alone(self, *, repair: bool = False) -> Examination: ...

    def restores(self) -> Restores: ...

    async def rebuild(self) -> Sequence[SessionInfo]: ...

    async def probes(self) -> tuple[list[Probe], list[Probe]]: ...

    async def storage(self, name: str) -> Storage: ...

    async def capabilities_of(self, runtime: str, storage: str) -> frozenset[Capability]: ...


Build = Callable[[Settings, Callable[[int], None]], Engine]

if TYPE_CHECKING:
    # It is loaded when it is wanted, so only here can be seen that it fits.
    from sandlot.wiring import embedded

    _fits: Build = embedded.build


@dataclass(frozen=True, slots=True)
class Context:
    args: argparse.Namespace
    settings: Settings
    remote: Remote | None  # a server that is used instead of the data directory
    wait_s: float  # for another engine to give the data directory back
    screen: Screen
    progress: TemplateProgress
    interruption: Interruption

    @classmethod
    def of(cls, args: argparse.Namespace, interruption: Interruption, settings: Settings | None = None) -> "Context":
        """Without `settings`, those of the environment. Raises InvalidArgument."""
        if settings is None:
            # Whoever leaves after one command would only throw a warm pool away.
            settings = replace(load(), warm_pool=0)
            if args.data_dir is not None:
                settings = replace(settings, data=_absolute(args.data_dir))
        screen = Screen(as_json=args.json)
        wait_s = values.duration("--wait", args.wait)
        return cls(args, settings, _remote(args), wait_s, screen, TemplateProgress(quiet=screen.as_json), interruption)

    @asynccontextmanager
    async def host(self) -> AsyncGenerator[Host]:
        """The server that was named, or whoever has the data directory, here or in another process. Raises
        DataDirectoryHeld when another one keeps it for too long and does not answer."""
        if self.remote is not None:
            client = registry.load("host", "client")(self.remote.url, api_key=self.remote.api_key)
            try:
                yield client
            finally:
                with self.interruption.held_off():
                    await client.aclose()
            return
        holding = registry.load("host", "embedded")(self.settings, self.progress)
        try:
            yield await holding.open(self.wait_s)
        finally:
            self.progress.close()
            with self.interruption.held_off():
                await holding.close()

    @asynccontextmanager
    async def engine(self, settings: Settings | None = None) -> AsyncGenerator[Engine]:
        """The engine of the data directory, for what is about this machine. Raises DataDirectoryHeld when another one
        keeps it for too long, InvalidArgument when a server was named."""
        if self.args.url is not None:
            raise InvalidArgument(f"{self.args.verb} is about this machine", next_step="leave out --url")
        build: Build = registry.load("host", "engine")
        host = build(settings or self.settings, self.progress)
        give_up = asyncio.get_running_loop().time() + self.wait_s
        while True:
            try:
                await host.start()
                break
            except DataDirectoryHeld:
                if asyncio.get_running_loop().time() >= give_up:
                    raise
                await asyncio.sleep(_RETRY_S)
        try:
            yield host
        finally:
            self.progress.close()
            with self.interruption.held_off():
                await host.close()

    @asynccontextmanager
    async def passing_session(self, host: Host, spec: SessionSpec) -> AsyncGenerator[SessionInfo]:
        """A new session that is destroyed when this is left, however it is left."""
        session = await host.create(spec)
        self.progress.close()
        try:
            yield session
        finally:
            with self.interruption.held_off(), suppress(SessionNotFound):
                await host.destroy(session.session_id)


def _remote(args: argparse.Namespace) -> Remote | None:
    """Raises InvalidArgument."""
    if args.url is not None and args.data_dir is not None:
        raise InvalidArgument("--url and --data-dir are two places", next_step="leave one of them out")
    return None if args.data_dir is not None else load_remote(args.url)


def _absolute(data: str) -> Path:
    try:
        return Path(data).absolute()
    except OSError as error:
        raise InvalidArgument(
            f"--data-dir {data} leads nowhere: {error.strerror}", next_step="give it from the root of the machine on"
        ) from error
