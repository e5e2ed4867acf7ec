"""What every verb is given: what was asked, the settings, a screen, and an engine when it wants one."""

import argparse
import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from sandlot.cli import values
from sandlot.cli.interruption import Interruption
from sandlot.cli.screen import Screen, TemplateProgress
from sandlot.config.settings import Settings, load
from sandlot.contracts import Host
from sandlot.model import DataDirectoryHeld, Probe
from sandlot.wiring.embedded import build

_RETRY_S = 0.05


class Engine(Host, Protocol):
    """A host in this process; it can also tell what its parts say of the machine."""

    async def probes(self) -> tuple[list[Probe], list[Probe]]: ...


@dataclass(frozen=True, slots=True)
class Context:
    args: argparse.Namespace
    settings: Settings
    wait_s: float  # for another engine to give the data directory back
    screen: Screen
    progress: TemplateProgress
    interruption: Interruption

    @classmethod
    def of(cls, args: argparse.Namespace, interruption: Interruption) -> "Context":
        """Raises InvalidArgument."""
        # Whoever leaves after one command would only throw a warm pool away.
        settings = replace(load(), warm_pool=0)
        if args.data_dir is not None:
            settings = replace(settings, data=Path(args.data_dir).absolute())
        screen = Screen(as_json=args.json)
        wait_s = values.duration("--wait", args.wait)
        return cls(args, settings, wait_s, screen, TemplateProgress(quiet=screen.as_json), interruption)

    @asynccontextmanager
    async def engine(self, settings: Settings | None = None) -> AsyncGenerator[Engine]:
        """The engine of the data directory. Raises DataDirectoryHeld when another one keeps it for too long."""
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
