"""The engine in this process."""

from collections.abc import Callable

from sandlot.config.settings import Settings
from sandlot.host.journal import Journal
from sandlot.host.memories import Memories
from sandlot.host.parts import HostParts, HostSettings
from sandlot.host.runtimes.gvisor import GvisorRuntime
from sandlot.host.runtimes.keeper import Keeper
from sandlot.host.runtimes.namespaces import NamespacesRuntime
from sandlot.host.runtimes.none import NoRuntime
from sandlot.host.service import SandboxHostService
from sandlot.host.storage.btrfs import BtrfsStorage
from sandlot.host.storage.layers import LayersStorage
from sandlot.host.storage.local_disk import LocalDiskStorage
from sandlot.host.storage.zfs import ZfsStorage
from sandlot.host.storage.zfs_pool import ZfsSettings
from sandlot.host.storages import Storages
from sandlot.host.templates.store import TemplateStore
from sandlot.previews.book import PreviewBook


def build(
    settings: Settings, progress: Callable[[int], None] | None = None, *, shares: bool = False
) -> SandboxHostService:
    """An engine, not yet started. `progress` hears of the built-in template while it is made, in another thread. With
    `shares` its data directory has a door, which has to be served."""
    keeper = Keeper(settings.data, settings.keeper, settings.resources.pids)
    return SandboxHostService(
        HostSettings(
            data=settings.data,
            storage=settings.storage,
            runtime=settings.runtime,
            sessions_max=settings.sessions_max,
            warm_pool=settings.warm_pool,
            warm_templates=dict(settings.warm_templates),
            turns_kept=settings.turns_kept,
            snapshot_prefix=settings.snapshot_prefix,
            resources=settings.resources,
            overcommit=settings.overcommit,
            space_warn=settings.space_warn,
            space_critical=settings.space_critical,
            health_interval_s=settings.health_interval_s,
            shutdown_timeout_s=settings.shutdown_timeout_s,
            pause_drain_s=settings.pause_drain_s,
            tool_timeout_s=settings.tool_timeout_s,
            call_snapshots=settings.call_snapshots,
            mounts=settings.mounts,
            advertise_address=settings.advertise_address,
            shares=shares,
            audit_anchor=settings.audit_anchor,
        ),
        HostParts(
            storages=_storages(settings),
            runtimes={
                runtime.name: runtime
                for runtime in (
                    NamespacesRuntime(keeper, settings.data),
                    GvisorRuntime(
                        keeper,
                        settings.data,
                        settings.runsc,
                        settings.gvisor_platform,
                        settings.preload,
                    ),
                    NoRuntime(keeper, settings.data),
                )
            },
            templates=TemplateStore(settings.data, progress, settings.space_critical),
            keeper=keeper,
            scout=settings.scout,
            journal=Journal(settings.data / "journal.db"),
            memories=Memories(settings.data),
            previews=PreviewBook(settings.data),
        ),
    )


def _zfs(settings: Settings) -> ZfsSettings:
    bases, sessions = settings.zfs_bases_dataset, settings.zfs_sessions_dataset
    return ZfsSettings(settings.zfs_pool, settings.zfs_bytes, bases, sessions)


def _storages(settings: Settings) -> Storages:
    """`auto` takes the first that is ready: btrfs where the data directory is on one."""
    btrfs = BtrfsStorage(settings.data, settings.btrfs_bytes)
    layers, zfs = LayersStorage(settings.data), ZfsStorage(settings.data, _zfs(settings))
    local_disk = LocalDiskStorage(settings.data, snapshots=settings.local_disk_snapshots)
    first = (btrfs, layers) if btrfs.is_native() else (layers, btrfs)
    return Storages(*first, zfs, local_disk)
