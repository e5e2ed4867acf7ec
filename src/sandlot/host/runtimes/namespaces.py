"""Kernel namespaces: every session has its own root, users, processes, network; the kernel is shared with the host."""

import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from sandlot.contracts.runtime import Group, Guest, MountPlan, StartPlan, Tree
from sandlot.contracts.storage import Volume
from sandlot.host.runtimes.dialling import Dialler
from sandlot.host.runtimes.keeper import Keeper, KeeperLost
from sandlot.host.runtimes.trees import open_tree
from sandlot.host.storage.canonical import CANONICAL_ID
from sandlot.model import Capability, CapabilityNotSupported, Probe, SandlotError

HOSTNAME = "sandbox"
WORKSPACE = "/workspace"
_PROBE_NAME = "probe"
_ALWAYS = frozenset(
    {
        Capability.ISOLATION,
        Capability.OWN_ROOT,
        Capability.USERS,
        Capability.TERMINALS,
        Capability.SURVIVES_ENGINE,
        Capability.VOLUMES,
        Capability.PORTS,
    }
)


class NamespacesRuntime:
    name = "namespaces"
    warm_ups = 1

    def __init__(self, keeper: Keeper, data: Path) -> None:
        self._keeper = keeper
        self._data = data
        self._dialler = Dialler()

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What this machine can limit is known when the keeper is there."""
        return _ALWAYS | self._keeper.groups.capabilities

    async def probe(self) -> Probe:
        """Starts a guest on an empty root: what a session needs of the kernel, all of it, for real."""
        if os.geteuid() != 0:
            return Probe(self.name, False, "not root", "run as root, or use the runtime `none` for code you trust")
        place = self._data / "run" / _PROBE_NAME
        try:
            for folder in ("root/proc", "root/dev", "volume/u", "volume/w"):
                (place / folder).mkdir(parents=True, exist_ok=True)
            os.chown(place / "volume" / "u", CANONICAL_ID, CANONICAL_ID)
        except OSError as error:
            reason = f"cannot give files to other users: {error.strerror}"
            return Probe(self.name, False, reason, "run as root of the machine, not of a container or a user namespace")
        plan = StartPlan(Volume(_PROBE_NAME, place / "volume"), place / "root", 0)
        try:
            guest = await self.start(plan, lambda _reason: None)
            guest.close()
            await self.stop(_PROBE_NAME)
        except KeeperLost:
            raise  # says nothing about the machine
        except SandlotError as error:
            return Probe(
                self.name, False, error.message, "Linux 6.15 or later with overlayfs and user namespaces is needed"
            )
        return Probe(self.name, True)

    def workspace(self, volume: Volume) -> str:
        del volume  # the same path in every session
        return WORKSPACE

    def open_tree(self, plan: StartPlan, guest: Guest) -> Tree:
        return open_tree(plan, guest, "root")

    async def start(self, plan: StartPlan, on_end: Callable[[str], None]) -> Guest:
        words = (HOSTNAME, str(plan.range), *_root_words(plan))
        guest = await self._keeper.start(self.name, plan.volume.name, words, plan.range, plan.resources, on_end)
        await guest.known()
        await self._keeper.show(plan.volume.name, plan.resources)
        guest.begin()
        return guest

    async def find(self, name: str, on_end: Callable[[str], None]) -> Guest | None:
        return self._keeper.take(name, on_end)

    async def names(self) -> Sequence[str]:
        return self._keeper.names()

    def group(self, name: str) -> Group:
        return self._keeper.group(name)

    async def swap(self, plan: StartPlan) -> None:
        await self._keeper.swap(plan.volume.name, _root_words(plan))

    async def checkpoint(self, name: str, image: Path) -> None:
        del name, image
        raise CapabilityNotSupported(
            f"the runtime {self.name} cannot keep memory", next_step="use the runtime `gvisor`"
        )

    async def dial(self, name: str, guest: Guest, port: int) -> socket.socket | None:
        del name  # its guest is in its network
        return await self._dialler.dial(guest, port)

    async def stop(self, name: str) -> None:
        await self._keeper.stop(name)


def _root_words(plan: StartPlan) -> tuple[str, ...]:
    assert plan.template is not None, "a root needs a template"
    return (str(plan.template), str(plan.volume.path), *map(str, plan.volume.layers), *map(_mount_word, plan.mounts))


def _mount_word(mount: MountPlan) -> str:
    """As guest/src/root.c reads it. No path of a mount holds the end of a line."""
    owner = ("", "", "") if mount.owner is None else mount.owner
    return "\n".join(("+ro" if mount.read_only else "+rw", *map(str, owner), mount.target, mount.path))
