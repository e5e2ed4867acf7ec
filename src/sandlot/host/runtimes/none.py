"""No containment: commands run on the machine as the user who runs the engine. For code that you trust, and never
chosen by `auto`. What it gives is a process group of its own and a clean environment.

A session is told one path for its workspace, which stays the same: `workspaces/<name of its volume>`. It is a link to
where its files are now, and is pointed elsewhere by a rollback, in one step. Programs that ask the kernel for the path
of their directory are told where the link leads.
"""

import os
import secrets
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from sandlot.contracts.runtime import Group, Guest, StartPlan, Tree
from sandlot.contracts.storage import Volume
from sandlot.host.runtimes.descendants import Descendants
from sandlot.host.runtimes.dialling import dial_own
from sandlot.host.runtimes.keeper import Keeper
from sandlot.host.storage.canonical import WORKSPACE
from sandlot.model import Capability, CapabilityNotSupported, Probe, Resources, Unavailable


class NoRuntime:
    name = "none"
    warm_ups = 1

    def __init__(self, keeper: Keeper, data: Path) -> None:
        self._keeper = keeper
        self._data = data
        self._links = data / "workspaces"

    @property
    def capabilities(self) -> frozenset[Capability]:
        return (
            frozenset({Capability.TERMINALS, Capability.SURVIVES_ENGINE, Capability.PORTS})
            | self._keeper.groups.abilities
        )

    async def probe(self) -> Probe:
        return Probe(self.name, True, "does not isolate: for trusted code only")

    def workspace(self, volume: Volume) -> str:
        return str(self._links / volume.name)

    def open_tree(self, plan: StartPlan, guest: Guest) -> Tree:
        del guest  # the workspace is there with or without it
        try:
            fd = os.open(_workspace(plan.volume.path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise Unavailable(f"the workspace cannot be opened: {error.strerror}") from error
        return Tree(fd, self.workspace(plan.volume), None)

    async def start(self, plan: StartPlan, on_end: Callable[[str], None]) -> Guest:
        self._point(plan.volume)
        # Not in the workspace: it would keep one that was rolled back.
        guest = await self._keeper.start(self.name, plan.volume.name, ("/",), -1, Resources(), on_end)
        await guest.known()
        guest.begin()
        return guest

    async def find(self, name: str, on_end: Callable[[str], None]) -> Guest | None:
        # A session from before there were links: it was told where its files are, and they are still there.
        before = self._data / "volumes" / name
        if not os.path.lexists(self._links / name) and _workspace(before).is_dir():
            self._point(Volume(name, before))
        return self._keeper.take(name, on_end)

    async def names(self) -> Sequence[str]:
        self._sweep()
        return self._keeper.names()

    def group(self, name: str) -> Group:
        if self._keeper.groups.is_ready:
            return self._keeper.group(name)
        return self._descendants(name)

    def _descendants(self, name: str) -> Descendants:
        return Descendants(self._keeper.link(name).pid, self._stopped(name))

    def _stopped(self, name: str) -> Path:
        return self._data / "run" / f"stopped-{name}"

    async def swap(self, plan: StartPlan) -> None:
        """Whoever worked in it was ended before; who comes now finds the other files under the same path."""
        self._point(plan.volume)

    async def checkpoint(self, name: str, image: Path) -> None:
        del name, image
        raise CapabilityNotSupported(
            f"the runtime {self.name} cannot keep memory", next_step="use the runtime `gvisor`"
        )

    async def dial(self, name: str, guest: Guest, port: int) -> socket.socket | None:
        group = self._keeper.group(name) if self._keeper.groups.is_ready else self._descendants(name)
        return await dial_own(guest, group.processes, port)

    async def stop(self, name: str) -> None:
        await self._keeper.stop(name)
        for path in (self._links / name, self._stopped(name)):
            path.unlink(missing_ok=True)

    def _point(self, volume: Volume) -> None:
        """Whoever looks meanwhile sees the old files or the new ones."""
        fresh = self._links / f".{secrets.token_hex(8)}"
        try:
            self._links.mkdir(mode=0o700, exist_ok=True)
            _workspace(volume.path).mkdir(exist_ok=True)
            fresh.symlink_to(_workspace(volume.path))
            fresh.replace(self._links / volume.name)
        except OSError as error:
            raise Unavailable(f"the workspace cannot be made: {error.strerror}", volume=volume.name) from error

    def _sweep(self) -> None:
        """What a death in the middle left: links to what is not there, that no guest works with."""
        alive = set(self._keeper.names())
        with suppress(FileNotFoundError):
            for entry in list(os.scandir(self._links)):
                gone = not os.path.exists(entry.path)
                if entry.is_symlink() and entry.name not in alive and (gone or entry.name.startswith(".")):
                    Path(entry.path).unlink(missing_ok=True)


def _workspace(volume: Path) -> Path:
    return volume / "u" / WORKSPACE
