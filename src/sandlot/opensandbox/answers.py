"""What an OpenSandbox server answers, read into values. Both spellings of its fields are known; what is missing stays
empty; what is not what it should be is Unavailable, never a KeyError.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar, cast

from sandlot.model import (
    CapabilityNotSupported,
    Conflict,
    DeadlineExceeded,
    FileNotFound,
    InvalidArgument,
    LimitReached,
    NotFound,
    PermissionDenied,
    SandlotError,
    SessionNotFound,
    Unavailable,
)
from sandlot.opensandbox.values import (
    CommandLogs,
    CommandStatus,
    EgressRule,
    Endpoint,
    FileInfo,
    NetworkPolicy,
    SandboxMetrics,
    SandboxResponse,
    SnapshotResponse,
)

T = TypeVar("T")
Told = Mapping[str, Any]

_ERRORS: Mapping[int, type[SandlotError]] = {
    400: InvalidArgument,
    401: PermissionDenied,
    403: PermissionDenied,
    404: NotFound,
    408: DeadlineExceeded,
    409: Conflict,
    413: LimitReached,
    415: InvalidArgument,
    416: InvalidArgument,
    422: InvalidArgument,
    429: LimitReached,
    501: CapabilityNotSupported,
    502: Unavailable,
    503: Unavailable,
    504: DeadlineExceeded,
}
_NEXT_STEPS = {
    401: "give the API key of this server",
    403: "the key, or the token of the endpoint, is not for this",
    429: "wait, or ask for less at once",
    502: "the sandbox does not answer: see whether it runs",
}
_CODES: Mapping[str, type[SandlotError]] = {"FILE_NOT_FOUND": FileNotFound, "CONTEXT_NOT_FOUND": NotFound}


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]  # lower case
    body: bytes


def refusal(operation: str, answer: Answer) -> SandlotError:
    """The error that an answer is, by what its caller can do."""
    code, message = "", answer.body[:1024].decode(errors="replace").strip()
    try:
        found: object = json.loads(answer.body)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict):
        told = cast("dict[str, Any]", found)
        code = str(told.get("code", ""))[:100]
        message = str(told.get("message") or told.get("detail") or message)[:1024]
    kind = _CODES.get(code) or _ERRORS.get(answer.status) or (SandlotError if answer.status < 500 else Unavailable)
    if kind is NotFound and code.endswith("SANDBOX_NOT_FOUND"):
        kind = SessionNotFound
    context: dict[str, str | int] = {"operation": operation, "status": answer.status}
    if code:
        context["server_code"] = code
    text = f"{operation}: the server answered {answer.status}" + (f": {message}" if message else "")
    return kind(text, next_step=_NEXT_STEPS.get(answer.status, ""), **context)


def json_of(operation: str, answer: Answer) -> Any:
    try:
        return json.loads(answer.body)
    except (ValueError, RecursionError) as error:
        raise Unavailable(f"{operation}: the answer is no JSON: {answer.body[:100]!r}") from error


def object_of(operation: str, found: object) -> Told:
    if not isinstance(found, dict):
        raise Unavailable(f"{operation}: the answer is no object: {str(found)[:100]}")
    return cast("dict[str, Any]", found)


def list_of(operation: str, found: object) -> list[Told]:
    if not isinstance(found, list):
        raise Unavailable(f"{operation}: the answer is no list: {str(found)[:100]}")
    return [object_of(operation, item) for item in cast("list[object]", found)]


def nothing(_operation: str, _answer: Answer) -> None:
    """Where the status says it all."""


def one(read: Callable[[Told], T]) -> Callable[[str, Answer], T]:
    def reading(operation: str, answer: Answer) -> T:
        return _told(operation, read, object_of(operation, json_of(operation, answer)))

    return reading


def many(read: Callable[[Told], T]) -> Callable[[str, Answer], list[T]]:
    def reading(operation: str, answer: Answer) -> list[T]:
        return [_told(operation, read, item) for item in list_of(operation, json_of(operation, answer))]

    return reading


def page(read: Callable[[Told], T]) -> Callable[[str, Answer], tuple[list[T], bool]]:
    """The items, and whether there are more. An older server sends a bare list, whole."""

    def reading(operation: str, answer: Answer) -> tuple[list[T], bool]:
        found = json_of(operation, answer)
        if isinstance(found, list):
            return [_told(operation, read, item) for item in list_of(operation, cast("object", found))], False
        told = object_of(operation, found)
        items = [_told(operation, read, item) for item in list_of(operation, told.get("items", []))]
        paging: object = told.get("pagination")
        more = isinstance(paging, dict) and bool(cast("dict[str, Any]", paging).get("hasNextPage"))
        return items, more

    return reading


def _told(operation: str, read: Callable[[Told], T], told: Told) -> T:
    try:
        return read(told)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Unavailable(f"{operation}: the answer lacks something: {str(told)[:200]} ({error!r})") from error


def either(told: Told, *names: str) -> Any:
    """The first of several spellings that is there and is not null."""
    return next((told[name] for name in names if told.get(name) is not None), None)


def texts(found: object) -> dict[str, str]:
    pairs = cast("dict[object, object]", found or {})
    return {str(key): str(value) for key, value in pairs.items()}


def moment(text: object) -> float | None:
    """RFC 3339 as seconds since 1970."""
    if not isinstance(text, str) or not text:
        return None
    return datetime.fromisoformat(text).timestamp()


def sandbox(told: Told) -> SandboxResponse:
    status: object = told.get("status")
    state = cast("Told", status) if isinstance(status, dict) else {"state": status or "Pending"}
    image: object = told.get("image")
    return SandboxResponse(
        sandbox_id=str(told["id"]),
        state=str(state.get("state", "")),
        created=moment(either(told, "createdAt", "created_at")),
        expires=moment(either(told, "expiresAt", "expires_at")),
        metadata=texts(told.get("metadata")),
        reason=str(state.get("reason") or ""),
        message=str(state.get("message") or ""),
        image=str(cast("Told", image).get("uri") or "") if isinstance(image, dict) else str(image or ""),
        entrypoint=tuple(str(part) for part in told.get("entrypoint") or ()),
    )


def snapshot(told: Told) -> SnapshotResponse:
    status: object = told.get("status")
    state = cast("Told", status).get("state") if isinstance(status, dict) else status
    return SnapshotResponse(
        snapshot_id=str(told["id"]),
        sandbox_id=str(either(told, "sandboxId", "sandbox_id") or ""),
        state=str(state or ""),
        name=str(told.get("name") or ""),
        created=moment(either(told, "createdAt", "created_at")),
    )


def endpoint(scheme: str, port: int) -> Callable[[Told], Endpoint]:
    """It comes without a scheme: that of the API is put before it."""

    def reading(told: Told) -> Endpoint:
        where = str(either(told, "url", "endpoint") or "")
        if not where:
            raise ValueError("no endpoint")
        url = where if "://" in where else f"{scheme}://{where}"
        host = str(told.get("host") or url.split("://", 1)[1].split("/", 1)[0])
        return Endpoint(url.rstrip("/"), texts(told.get("headers")), host, int(told.get("port") or port))

    return reading


def expires(told: Told) -> float:
    found = moment(either(told, "expiresAt", "expires_at"))
    if found is None:
        raise ValueError("no time")
    return found


def session_id(told: Told) -> str:
    return str(told["session_id"])


def file_info(told: Told) -> FileInfo:
    return FileInfo(
        path=str(told["path"]),
        size_bytes=int(told.get("size") or 0),
        modified=moment(either(told, "modified_at", "modifiedAt")),
        created=moment(either(told, "created_at", "createdAt")),
        kind=str(told.get("type") or "file"),
        mode=from_digits(int(told.get("mode") or 0)),
        owner=str(told.get("owner") or ""),
        group=str(told.get("group") or ""),
    )


def file_infos(told: Told) -> dict[str, FileInfo]:
    return {str(path): file_info(info) for path, info in told.items()}


def command_status(told: Told) -> CommandStatus:
    code: object = told.get("exit_code")
    return CommandStatus(
        command_id=str(told["id"]),
        running=bool(told["running"]),
        exit_code=code if isinstance(code, int) else None,
        error=str(told.get("error") or ""),
        started=moment(told.get("started_at")),
        finished=moment(told.get("finished_at")),
    )


def command_logs(operation: str, answer: Answer) -> CommandLogs:
    cursor = answer.headers.get("execd-commands-tail-cursor", "0")
    if not cursor.isdecimal():
        raise Unavailable(f"{operation}: the cursor is no number: {cursor[:40]!r}")
    return CommandLogs(answer.body.decode(errors="replace"), int(cursor))


def metrics(told: Told) -> SandboxMetrics:
    return SandboxMetrics(
        cpu_count=float(told["cpu_count"]),
        cpu_percent=float(told["cpu_used_pct"]),
        memory_bytes=int(float(told["mem_used_mib"]) * (1 << 20)),
        memory_total_bytes=int(float(told["mem_total_mib"]) * (1 << 20)),
    )


def policy(told: Told) -> NetworkPolicy:
    inner = cast("Told", told.get("policy") or told)
    rules = tuple(EgressRule(rule["action"], str(rule["target"])) for rule in inner.get("egress") or ())
    return NetworkPolicy(either(inner, "defaultAction", "default_action") or "deny", rules)


def replaced(told: Told) -> dict[str, int]:
    return {str(path): int(found["replacedCount"]) for path, found in told.items()}


def from_digits(mode: int) -> int:
    """The wire writes 0o644 as 644."""
    return int(str(mode), 8) if mode and set(str(mode)) <= set("01234567") else 0


def to_digits(mode: int) -> int:
    return int(f"{mode:o}")
