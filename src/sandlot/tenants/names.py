"""Names of a tenant, as the host has them. A session `s` of the tenant `t` is `tenant-t.s` there, so nothing of another
tenant has a name that could be asked for: it is unknown, and not forbidden.
"""

import os
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar, cast

from sandlot.model import (
    EventFilter,
    ImportRequest,
    Mount,
    PermissionDenied,
    SandlotError,
    SessionSpec,
    VolumeInfo,
    VolumeSpec,
    check_session_id,
    check_volume_name,
    error_from_data,
    error_to_data,
    new_session_id,
)

T = TypeVar("T")
_NOBODYS = f"nobodys-{os.urandom(8).hex()}."  # no session has a name with this in it
_IDS = frozenset(["session_id", "origin"])


class Names:
    def __init__(self, tenant: str, only: str = "") -> None:
        """Without a tenant: as the host has them. `only`: of one session, any other is as unknown as one that nobody
        has."""
        self._prefix = f"tenant-{tenant}." if tenant else ""
        self._only = only
        self._places: dict[type, tuple[str, ...]] = {}

    def owns(self, session_id: str) -> bool:
        if self._only:
            return session_id == self._prefix + self._only
        return session_id.startswith(self._prefix)

    # ---- in ----------------------------------------------------------------------------------------------------

    def inward_id(self, session_id: str) -> str:
        check_session_id(session_id)
        if self._only and session_id != self._only:
            return self._prefix + _NOBODYS + session_id
        return self._prefix + session_id

    def inward_volume(self, name: str) -> str:
        return self._prefix + check_volume_name(name)

    def inward(self, value: T) -> T:
        """A request as the host is to have it. Raises PermissionDenied for what only the operator may ask."""
        if isinstance(value, SessionSpec):
            return cast("T", self._session(value))
        if isinstance(value, ImportRequest):
            # The id in the file is somebody's word.
            return cast("T", replace(value, session_id=self.inward_id(value.session_id or new_session_id())))
        if isinstance(value, VolumeSpec):
            return cast("T", replace(value, name=self.inward_volume(value.name)))
        if isinstance(value, EventFilter) and value.session_id is None:
            # What it gives is looked through.
            return cast("T", replace(value, session_id=self._prefix + self._only)) if self._only else value
        asked: Any = value
        return cast("T", replace(asked, session_id=self.inward_id(asked.session_id)))

    def _session(self, spec: SessionSpec) -> SessionSpec:
        return replace(
            spec,
            session_id=self.inward_id(spec.session_id or new_session_id()),
            snapshot=None if spec.snapshot is None else self._prefix + spec.snapshot,
            request_id=None if spec.request_id is None else self._prefix + spec.request_id,
            mounts=tuple(self._mount(mount) for mount in spec.mounts),
        )

    def _mount(self, mount: Mount) -> Mount:
        if mount.is_of_host:
            raise PermissionDenied(
                "directories of the machine are for its operator", next_step="make a volume, and mount that"
            )
        return replace(mount, source=self.inward_volume(mount.source))

    # ---- out ---------------------------------------------------------------------------------------------------

    def outward(self, value: Any) -> Any:
        """What the host gave, as the tenant is to have it."""
        if value is None or isinstance(value, str | bytes | int | float):
            return value
        if isinstance(value, VolumeInfo):
            used_by = tuple(self.plain(one) for one in value.used_by)
            return replace(value, name=self.plain(value.name), used_by=used_by)
        if isinstance(value, Mount):
            return value if value.is_of_host else replace(value, source=self.plain(value.source))
        if isinstance(value, tuple):
            return tuple(self.outward(item) for item in cast("tuple[Any, ...]", value))
        if isinstance(value, list):
            return [self.outward(item) for item in cast("list[Any]", value)]
        if not is_dataclass(value) or isinstance(value, type):
            return value
        changes: dict[str, Any] = {}
        for name in self._all(value):
            before: Any = getattr(value, name)
            after = self.plain(before) if isinstance(before, str) else self.outward(before)
            if after is not before and after != before:
                changes[name] = after
        return replace(value, **changes) if changes else value

    def _all(self, value: Any) -> tuple[str, ...]:
        """The fields of its kind that can hold a name, or something that does."""
        kind = cast("type[Any]", value.__class__)
        if kind not in self._places:
            self._places[kind] = tuple(
                field.name
                for field in fields(value)
                if field.name in _IDS or field.name == "detail" or _may_hold(str(field.type))
            )
        return self._places[kind]

    def plain(self, text: str) -> str:
        text = text.replace(self._prefix, "")
        return text.replace(_NOBODYS, "") if self._only else text

    def outward_error(self, error: SandlotError) -> SandlotError:
        told = error_to_data(error)
        context = cast("Mapping[str, str | int]", told["context"])
        plain = {key: self.plain(value) if isinstance(value, str) else value for key, value in context.items()}
        return error_from_data(error.code, self.plain(error.message), self.plain(error.next_step), plain)


_HOLDERS = ("SessionInfo", "Mount", "CallRecord", "Snapshot", "Turn", "Process", "ExposedPort", "Terminal", "Context")


def _may_hold(kind: str) -> bool:
    return any(name in kind for name in _HOLDERS)
