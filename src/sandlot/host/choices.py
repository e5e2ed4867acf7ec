"""Which storage and runtime a session gets, and whether what it asks for can be had: before anything is made."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import TypeVar

from sandlot.contracts.runtime import Runtime
from sandlot.contracts.storage import Storage
from sandlot.host.storages import Storages
from sandlot.model import (
    AUTO,
    BUILTIN,
    Capability,
    CapabilityNotSupported,
    InvalidArgument,
    NetworkPolicy,
    OnExpiry,
    Probe,
    Resources,
    SessionSpec,
    SnapshotsNotAvailable,
    split_name,
)

_Part = TypeVar("_Part", Storage, Runtime)
_KEPT = 64  # answers to what most sessions ask alike

_LIMITS = {
    "cpus": Capability.LIMIT_CPUS,
    "memory_bytes": Capability.LIMIT_MEMORY,
    "disk_bytes": Capability.LIMIT_DISK,
    "pids": Capability.LIMIT_PIDS,
    "open_files": Capability.LIMIT_OPEN_FILES,
    "swap_bytes": Capability.LIMIT_SWAP,
    "io_weight": Capability.LIMIT_IO,
}


class Choices:
    """Only the value `auto` chooses, and only an isolating runtime; an explicit choice is taken or refused."""

    def __init__(
        self,
        storages: Storages,
        runtimes: Mapping[str, Runtime],
        storage: str,
        runtime: str,
    ) -> None:
        self.storages = storages
        self.runtimes = runtimes
        self._default_storage = storage
        self._default_runtime = runtime
        self._isolating = tuple(name for name, part in runtimes.items() if Capability.ISOLATION in part.capabilities)
        self._found: dict[tuple[str, str], str] = {}
        self._probing = asyncio.Lock()

    async def storage(self, asked: str = AUTO, disk_bytes: int | None = None) -> Storage:
        """Attached. With a limit of the disk `auto` takes the first that is ready and can hold it, if there is one.
        Raises InvalidArgument for an unknown name, CapabilityNotSupported, Unavailable."""
        found = await self._find_storage(asked, limited=disk_bytes is not None)
        await self.storages.attach(found.name)
        return found

    async def capabilities(self) -> frozenset[Capability]:
        """What a session can ask for that leaves the choice to the host."""
        have = session_capabilities(await self.runtime(), await self.storage())
        limits_disk = Capability.LIMIT_DISK in (await self._find_storage(AUTO, limited=True)).capabilities
        return have | {Capability.LIMIT_DISK} if limits_disk else have

    async def _find_storage(self, asked: str, *, limited: bool) -> Storage:
        chosen = self._default_storage if asked == AUTO else asked
        able = self._limiting() if limited and chosen == AUTO else ()
        if able:
            with suppress(CapabilityNotSupported):  # then the wish is refused, by its name
                return await self._choose("limited storage", AUTO, AUTO, self.storages, able)
        return await self._choose("storage", asked, self._default_storage, self.storages, tuple(self.storages))

    def _limiting(self) -> tuple[str, ...]:
        return tuple(name for name, one in self.storages.items() if Capability.LIMIT_DISK in one.capabilities)

    async def runtime(self, asked: str = AUTO) -> Runtime:
        """Raises InvalidArgument for an unknown name, CapabilityNotSupported for one that does not work here."""
        return await self._choose("runtime", asked, self._default_runtime, self.runtimes, self._isolating)

    async def _choose(
        self, axis: str, asked: str, default: str, parts: Mapping[str, _Part], automatic: tuple[str, ...]
    ) -> _Part:
        name = default if asked == AUTO else asked
        key = (axis, name)
        if key in self._found:
            return parts[self._found[key]]
        if name != AUTO and name not in parts:
            raise InvalidArgument(f"there is no {axis} {name!r}", next_step=f"use one of: auto, {', '.join(parts)}")
        trouble: list[str] = []
        for candidate in automatic if name == AUTO else (name,):
            async with self._probing:
                probe = Probe(candidate, True) if key in self._found else await parts[candidate].probe()
            if probe.ready:
                self._found[key] = candidate
                return parts[candidate]
            trouble.append(f"{candidate}: {probe.reason}" + (f"; {probe.next_step}" if probe.next_step else ""))
        raise CapabilityNotSupported(
            f"no {axis} that was asked for works here ({'. '.join(trouble)})", next_step="run `sandlot doctor`"
        )

    async def probes(self) -> tuple[list[Probe], list[Probe]]:
        """What each storage and each runtime says about this machine."""
        return (
            [await storage.probe() for storage in self.storages.values()],
            [await runtime.probe() for runtime in self.runtimes.values()],
        )


def session_capabilities(runtime: Runtime, storage: Storage) -> frozenset[Capability]:
    """What a session on both can do. Without a root of its own nothing stacks what a snapshot holds in pieces."""
    return together(runtime.capabilities, storage)


@lru_cache(_KEPT)
def _together(
    of_runtime: frozenset[Capability], of_storage: frozenset[Capability], *, is_whole: bool
) -> frozenset[Capability]:
    both = of_runtime | of_storage
    has_files = Capability.OWN_ROOT in of_runtime or is_whole
    return both if has_files else both - {Capability.SNAPSHOTS}


def together(of_runtime: frozenset[Capability], storage: Storage) -> frozenset[Capability]:
    return _together(of_runtime, storage.capabilities, is_whole=storage.is_whole)


def no_snapshots(runtime: Runtime, storage: Storage, session_id: str = "") -> SnapshotsNotAvailable:
    if Capability.SNAPSHOTS in storage.capabilities:
        step = "use the runtime `namespaces`, or a storage whose volumes are whole, as `local-disk` with snapshots"
    else:
        step = f"use another storage, or let {storage.name} have them: docs/operating/local-disk.md says how"
    about = {"session_id": session_id} if session_id else {}
    return SnapshotsNotAvailable(
        f"the storage {storage.name} on the runtime {runtime.name} has no snapshots", next_step=step, **about
    )


@lru_cache(_KEPT)
def grant(asked: Resources, defaults: Resources, have: frozenset[Capability]) -> tuple[Resources, tuple[str, ...]]:
    """The limits of a session: what was asked for, and the defaults, but those that cannot be enforced; and which
    these are."""
    missing = tuple(name for name in defaults.asked() if _LIMITS[name] not in have and name not in asked.asked())
    return asked.over(defaults.without(*missing)), missing


def check_wishes(spec: SessionSpec, have: frozenset[Capability]) -> None:
    """Refuse what cannot be enforced. Raises CapabilityNotSupported."""
    wishes = [_LIMITS[name] for name in spec.resources.asked()]
    if spec.network != NetworkPolicy():
        wishes.append(Capability.NETWORK)
    if spec.secrets:
        wishes.append(Capability.SECRETS)
    if spec.ports:
        wishes.append(Capability.PORTS)
    if spec.snapshot or spec.call_snapshots:
        wishes.append(Capability.SNAPSHOTS)
    if spec.idle_timeout_s is not None or spec.on_expiry is OnExpiry.PAUSE:
        wishes.append(Capability.PAUSE)
    if spec.mounts:
        wishes.append(Capability.VOLUMES)
    if spec.user:
        wishes.append(Capability.USERS)
    if split_name(spec.template)[0] != BUILTIN:
        wishes.append(Capability.OWN_ROOT)  # else a command would see nothing of it
    missing = [wish for wish in wishes if wish not in have]
    if missing:
        kind = SnapshotsNotAvailable if Capability.SNAPSHOTS in missing else CapabilityNotSupported
        raise kind(
            f"this host cannot give what was asked for: {', '.join(missing)}",
            next_step="leave it out, or use a host that has it",
            capability=missing[0],
        )
