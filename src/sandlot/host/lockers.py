"""Volumes as users know them, on disk: `lockers/NAME/files`, beside what says when it was made and for whom.

One is there when its directory has its name, and gone when it has it no more: both are one rename. What begins with a
dot is half made or half removed, and is swept by the next engine."""

import asyncio
import json
import os
import secrets
import stat
import time
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from sandlot.contracts.runtime import MountPlan
from sandlot.host import failpoints
from sandlot.host.kernel import rename_without_replacing, sync_entry
from sandlot.host.removal import remove_tree
from sandlot.host.session import Session
from sandlot.host.storage.canonical import CANONICAL_ID
from sandlot.model import (
    AllowedMount,
    Conflict,
    Mount,
    NotFound,
    PermissionDenied,
    SessionSpec,
    Unavailable,
    VolumeInfo,
    VolumeSpec,
    check_volume_name,
)

_T = TypeVar("_T")
_USER_ID = 1000  # of the built-in template's user
_TOLD = "locker.json"
_FILES = "files"


class Lockers:
    def __init__(
        self,
        data: Path,
        allowed: Collection[AllowedMount],
        sessions: Callable[[], Collection[Session]],
        check_open: Callable[[], None],
    ) -> None:
        self._folder = data / "lockers"
        self._allowed = allowed
        self._sessions = sessions
        self._check_open = check_open
        self._coming: dict[str, list[str]] = {}  # volumes of sessions that are being made
        self._going: set[str] = set()
        self._making = 0

    async def start(self) -> None:
        """Finish what an earlier engine began. Raises Unavailable."""
        await self._do(self._sweep)

    async def create(self, spec: VolumeSpec) -> VolumeInfo:
        self._check_open()
        told = {"shared": spec.shared, "created": time.time()}
        self._making += 1
        try:
            await self._do(lambda: self._make(spec.name, json.dumps(told)))
        finally:
            self._making -= 1
        return VolumeInfo(spec.name, spec.shared, told["created"], (), 0)

    def is_changing(self) -> bool:
        """Whether one is being made or removed."""
        return bool(self._making or self._going)

    async def get(self, name: str) -> VolumeInfo:
        info = await self._do(lambda: self._read(check_volume_name(name)))
        used = await self._do(lambda: _space(self._folder / name / _FILES))
        return replace(info, used_by=self._used_by(name), space_used=used)

    async def all(self) -> list[VolumeInfo]:
        names = await self._do(lambda: sorted(name for name in self._names() if not name.startswith(".")))
        found = [await self._do(lambda name=name: self._read(name)) for name in names]
        return [replace(info, used_by=self._used_by(info.name)) for info in found]

    async def remove(self, name: str) -> None:
        self._check_open()
        await self._do(lambda: self._read(check_volume_name(name)))
        if users := self._used_by(name):
            raise Conflict(
                f"the volume {name} is used by {', '.join(users[:5])}", next_step="destroy them first", volume=name
            )
        if name in self._going:
            raise Conflict(f"the volume {name} is being removed", volume=name)
        self._going.add(name)
        try:
            await self._do(lambda: self._drop(name))
        finally:
            self._going.discard(name)

    @asynccontextmanager
    async def held(self, spec: SessionSpec) -> AsyncGenerator[tuple[MountPlan, ...]]:
        """What a session that is to be made has of them; until it is there, nobody removes them. Raises NotFound,
        Conflict for a private one that another session has, PermissionDenied for a directory that is not allowed."""
        plans = [await self._do(lambda mount=mount: self._plan(mount, spec.user)) for mount in spec.mounts]
        names = [mount.source for mount in spec.mounts if not mount.is_of_host]
        for name in names:
            self.need_free(name, await self._do(lambda name=name: self._read(name)))
        for name in names:
            self._coming.setdefault(name, []).append(spec.session_id or "a new session")
        try:
            yield tuple(plans)
        finally:
            for name in names:
                self._coming[name].remove(spec.session_id or "a new session")

    def need_free(self, name: str, info: VolumeInfo) -> None:
        """Raises Conflict."""
        users = self._used_by(name)
        if name in self._going or (users and not info.shared):
            raise Conflict(
                f"the volume {name} is private, and {users[0] if users else 'its removal'} has it",
                next_step="make a volume that is shared, or destroy that session",
                volume=name,
            )

    async def need_shared(self, plans: Collection[MountPlan]) -> None:
        """Whether a fork may have them too. Raises Conflict."""
        for plan in plans:
            if not plan.is_of_host:
                self.need_free(plan.source, await self._do(lambda name=plan.source: self._read(name)))

    def _used_by(self, name: str) -> tuple[str, ...]:
        users = [each.row.session_id for each in self._sessions() if name in map(_locker, each.mounts)]
        return (*users, *self._coming.get(name, ()))

    def files_of(self, name: str) -> Path:
        return self._folder / name / _FILES

    async def put_back(self, spec: VolumeSpec, created: float, files: Path) -> None:
        """One that was elsewhere, from its files, which are moved. Raises Conflict, Unavailable."""
        told = json.dumps({"shared": spec.shared, "created": created})
        await self._do(lambda: self._make(spec.name, told, files))

    async def plan(self, mount: Mount) -> MountPlan:
        """What a session has of a volume. Raises NotFound."""
        return await self._do(lambda: self._plan(mount, None))

    # ---- on disk, blocking -------------------------------------------------------------------------------------

    async def _do(self, work: Callable[[], _T]) -> _T:
        try:
            return await asyncio.to_thread(work)
        except OSError as error:
            if isinstance(error, Conflict | NotFound | PermissionDenied):
                raise
            raise Unavailable(f"volumes cannot be reached: {error.strerror}") from error

    def _names(self) -> list[str]:
        return os.listdir(self._folder) if self._folder.is_dir() else []

    def _sweep(self) -> None:
        for name in self._names():
            if name.startswith("."):
                remove_tree(self._folder / name)

    def _make(self, name: str, told: str, files: Path | None = None) -> None:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        half = self._folder / f".new-{secrets.token_hex(8)}"
        try:
            half.mkdir(mode=0o700)
            if files is None:
                (half / _FILES).mkdir()
                os.chown(half / _FILES, CANONICAL_ID + _USER_ID, CANONICAL_ID + _USER_ID)
                (half / _FILES).chmod(0o777)  # who of a session may write is the session's own affair
            else:
                files.rename(half / _FILES)
            (half / _TOLD).write_text(told)
            for path in (half / _TOLD, half / _FILES, half):
                sync_entry(path)
            failpoints.reach("volume: filled")
            self._rename(half.name, name)
            failpoints.reach("volume: in place")
        except FileExistsError:
            remove_tree(half)
            raise Conflict(f"there is a volume {name}", next_step="take another name", volume=name) from None

    def _rename(self, old: str, new: str) -> None:
        above = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            rename_without_replacing(above, old, above, new)
            os.fsync(above)
        finally:
            os.close(above)

    def _read(self, name: str) -> VolumeInfo:
        try:
            told = json.loads((self._folder / name / _TOLD).read_text())
        except FileNotFoundError:
            raise NotFound(
                f"there is no volume {name}", next_step="`sandlot volume ls` lists them", volume=name
            ) from None
        return VolumeInfo(name, bool(told["shared"]), float(told["created"]))

    def _drop(self, name: str) -> None:
        gone = f".gone-{secrets.token_hex(8)}"
        self._rename(name, gone)
        failpoints.reach("volume: set aside")
        remove_tree(self._folder / gone)

    def _plan(self, mount: Mount, user: str | None) -> MountPlan:
        if not mount.is_of_host:
            self._read(mount.source)
            return MountPlan(mount.source, mount.target, mount.read_only, str(self._folder / mount.source / _FILES))
        return self._plan_of_host(mount, user)

    def _plan_of_host(self, mount: Mount, user: str | None) -> MountPlan:
        """Where the path leads is found out once, by handle; from then on no link in it is followed."""
        try:
            fd = os.open(mount.source, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise _not_allowed(mount, error.strerror) from None
        try:
            found, path = os.fstat(fd), Path(os.readlink(f"/proc/self/fd/{fd}"))
        finally:
            os.close(fd)
        allowed = next((each for each in self._allowed if path.is_relative_to(Path(each.path).resolve())), None)
        if allowed is None:
            raise _not_allowed(mount, "the operator does not allow it")
        if not mount.read_only and not allowed.writable:
            raise _not_allowed(mount, "it may only be read")
        if not mount.read_only and found.st_uid == 0:
            raise _not_allowed(mount, "it belongs to root, and what a session writes there would, too")
        inside = 0 if user in ("root", "0") else _USER_ID
        return MountPlan(
            mount.source,
            mount.target,
            mount.read_only,
            str(path),
            (found.st_uid, found.st_gid, inside),
            is_of_host=True,
        )


def _locker(plan: MountPlan) -> str:
    return "" if plan.is_of_host else plan.source


def _not_allowed(mount: Mount, why: str | None) -> PermissionDenied:
    return PermissionDenied(
        f"{mount.source} cannot be mounted: {why}",
        next_step="SANDLOT_MOUNTS lists what can; ask for it read-only, or make a volume",
        path=mount.source,
    )


def _space(top: Path) -> int:
    """Of all that is below, by handle; no link is followed."""
    total, pending = 0, [top]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                found = entry.stat(follow_symlinks=False)
                total += found.st_blocks * 512
                if stat.S_ISDIR(found.st_mode):
                    pending.append(Path(entry.path))
    return total
