"""Our values as OpenSandbox tells them. Nothing is ever null: their client stumbles over it."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from sandlot.gateways.opensandbox.schema import RESERVED, Create, Refused
from sandlot.model import (
    CapabilityNotSupported,
    Conflict,
    DeadlineExceeded,
    FileInfo,
    FileKind,
    FileNotFound,
    InvalidArgument,
    LimitReached,
    NotFound,
    PermissionDenied,
    SandlotError,
    SessionInfo,
    SessionNotFound,
    SessionState,
    StartFailed,
    Unavailable,
)

IMAGE: Final = f"{RESERVED}image"
ENTRYPOINT: Final = f"{RESERVED}entrypoint"
SNAPSHOT: Final = f"{RESERVED}snapshot"
ENDLESS: Final = f"{RESERVED}endless"
OF_SANDBOX: Final = f"{RESERVED}sandbox"
SNAPSHOT_NAME: Final = f"{RESERVED}name"
KEEP_ALIVE: Final = ("tail", "-f", "/dev/null")
_STATES: Final = {
    SessionState.CREATING: "Pending",
    SessionState.ACTIVE: "Running",
    SessionState.PAUSED: "Paused",
    SessionState.DESTROYING: "Stopping",
    SessionState.FAILED: "Failed",
}
_STATUSES: Final[tuple[tuple[type[SandlotError], int, str], ...]] = (
    (SessionNotFound, 404, "SANDLOT::SANDBOX_NOT_FOUND"),
    (FileNotFound, 404, "FILE_NOT_FOUND"),
    (NotFound, 404, "NOT_FOUND"),
    (InvalidArgument, 400, "SANDBOX::INVALID_PARAMETER"),
    (PermissionDenied, 403, "FORBIDDEN"),
    (Conflict, 409, "SANDBOX::INVALID_STATE"),
    (LimitReached, 429, "LIMIT_REACHED"),
    (CapabilityNotSupported, 501, "NOT_SUPPORTED"),
    (StartFailed, 500, "SANDBOX::START_FAILED"),
    (DeadlineExceeded, 504, "DEADLINE_EXCEEDED"),
    (Unavailable, 503, "UNAVAILABLE"),
)


def refusal(error: SandlotError) -> tuple[int, dict[str, str]]:
    """Status and body. Theirs has a code and a message, always both."""
    if isinstance(error, Refused):
        return error.status, {"code": error.server_code, "message": error.message}
    for kind, status, code in _STATUSES:
        if isinstance(error, kind):
            return status, {"code": code, "message": str(error)}
    return 500, {"code": "INTERNAL", "message": str(error)}


def moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def labels(asked: Create) -> dict[str, str]:
    """What is kept with the session: the user's metadata, and what is told again."""
    kept = dict(asked.metadata)
    if asked.image:
        kept[IMAGE] = asked.image
    if asked.snapshot_id:
        kept[SNAPSHOT] = asked.snapshot_id
    if asked.entrypoint and asked.entrypoint != KEEP_ALIVE:
        kept[ENTRYPOINT] = json.dumps(asked.entrypoint)
    if asked.timeout_s is None:
        kept[ENDLESS] = "1"
    return kept


def sandbox(info: SessionInfo) -> dict[str, Any]:
    """Both spellings of the times: older clients read the other one."""
    kept = info.labels
    status = {"state": _STATES[info.state], "lastTransitionAt": moment(info.created)}
    if info.reason:
        status |= {"reason": str(info.state), "message": info.reason}
    told: dict[str, Any] = {
        "id": info.session_id,
        "status": status,
        "entrypoint": json.loads(kept.get(ENTRYPOINT, "null")) or list(KEEP_ALIVE),
        "createdAt": moment(info.created),
        "created_at": moment(info.created),
        "metadata": metadata(kept),
    }
    if ENDLESS not in kept:
        told |= {"expiresAt": moment(info.expires), "expires_at": moment(info.expires)}
    if SNAPSHOT in kept:
        told["snapshotId"] = kept[SNAPSHOT]
    else:
        told["image"] = {"uri": kept.get(IMAGE, info.template)}
    return told


def metadata(kept: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in kept.items() if not key.startswith(RESERVED)}


def page(items: list[dict[str, Any]], number: int, size: int) -> dict[str, Any]:
    total = len(items)
    pages = -(-total // size)
    return {
        "items": items[(number - 1) * size : number * size],
        "pagination": {
            "page": number,
            "pageSize": size,
            "totalItems": total,
            "totalPages": pages,
            "hasNextPage": number < pages,
        },
    }


def is_snapshot(info: SessionInfo) -> bool:
    return OF_SANDBOX in info.labels


def snapshot(info: SessionInfo) -> dict[str, Any]:
    told: dict[str, Any] = {
        "id": info.session_id,
        "sandboxId": info.labels[OF_SANDBOX],
        "status": {"state": "Ready", "lastTransitionAt": moment(info.created)},
        "createdAt": moment(info.created),
    }
    if name := info.labels.get(SNAPSHOT_NAME):
        told["name"] = name
    return told


def file_info(info: FileInfo) -> dict[str, Any]:
    """A mode is written in the digits that people use: 0o644 as 644."""
    kind = "other" if info.kind is FileKind.OTHER else str(info.kind)
    return {
        "path": info.path.encode("utf-8", "surrogateescape").decode("utf-8", "replace"),
        "type": kind,
        "size": info.size_bytes,
        "modified_at": moment(info.modified),
        "created_at": moment(info.changed or info.modified),
        "owner": info.owner or str(info.uid),
        "group": info.group or str(info.gid),
        "mode": int(f"{info.mode:o}"),
    }
