"""No containment: commands run on the machine as the user who runs the engine. For code that you trust, and never
chosen by `auto`. What it gives is a process group of its own and a clean environment."""

import os
from collections.abc import Callable, Sequence

from sandlot.contracts.runtime import Group, Guest, StartPlan, Tree
from sandlot.contracts.storage import Volume
from sandlot.host.runtimes.keeper import Keeper
from sandlot.model import Capability, CapabilityNotSupported, Probe, Resources, Unavailable


class NoRuntime:
    name = "none"

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper

    @property
    def capabilities(self) -> frozenset[Capability]:
        return frozenset({Capability.TERMINALS, Capability.SURVIVES_ENGINE}) | self._keeper.groups.abilities

    async def probe(self) -> Probe:
        return Probe(self.name, True, "does not isolate: for trusted code only")

    def workspace(self, volume: Volume) -> str:
        return str(volume.path / "u" / "workspace")

    def open_tree(self, plan: StartPlan, guest: Guest) -> Tree:
        del guest  # the workspace is there with or without it
        path = self.workspace(plan.volume)
        try:
            return Tree(os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC), path, None)
        except OSError as error:
            raise Unavailable(f"the workspace cannot be opened: {error.strerror}") from error

    async def start(self, plan: StartPlan, on_end: Callable[[str], None]) -> Guest:
        workspace = plan.volume.path / "u" / "workspace"
        workspace.mkdir(exist_ok=True)
        guest = await self._keeper.start(self.name, plan.volume.name, (str(workspace),), -1, Resources(), on_end)
        await guest.known()
        guest.begin()
        return guest

    async def find(self, name: str, on_end: Callable[[str], None]) -> Guest | None:
        return self._keeper.take(name, on_end)

    async def names(self) -> Sequence[str]:
        return self._keeper.names()

    def group(self, name: str) -> Group:
        return self._keeper.group(name)

    async def swap(self, plan: StartPlan) -> None:
        raise CapabilityNotSupported("the runtime `none` has no root to swap", next_step="use the runtime `namespaces`")

    async def stop(self, name: str) -> None:
        await self._keeper.stop(name)
