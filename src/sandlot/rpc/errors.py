"""Errors of the model as errors of the wire, and back: one table, both ways."""

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any, cast

from connectrpc.code import Code
from connectrpc.errors import ConnectError

from sandlot.model import (
    CallNotFound,
    CapabilityNotSupported,
    Conflict,
    DeadlineExceeded,
    FileNotFound,
    InvalidArgument,
    LimitReached,
    NotFound,
    PermissionDenied,
    ProcessNotFound,
    SandlotError,
    SessionExists,
    SessionNotFound,
    SnapshotNotFound,
    StartFailed,
    TemplateNotFound,
    Unavailable,
    error_from_data,
)
from sandlot.rpc.gen.sandlot.v1.errors_pb import ErrorDetail

DETAIL = "sandlot.v1.ErrorDetail"
_INT64 = range(-(1 << 63), 1 << 63)

# The nearest of a class and those above it holds. The other way is for servers that send no detail: the first class
# of a code is what is raised.
CODES: Mapping[type[SandlotError], Code] = {
    InvalidArgument: Code.INVALID_ARGUMENT,
    NotFound: Code.NOT_FOUND,
    SessionNotFound: Code.NOT_FOUND,
    CallNotFound: Code.NOT_FOUND,
    ProcessNotFound: Code.NOT_FOUND,
    SnapshotNotFound: Code.NOT_FOUND,
    TemplateNotFound: Code.NOT_FOUND,
    FileNotFound: Code.NOT_FOUND,
    SessionExists: Code.ALREADY_EXISTS,
    Conflict: Code.FAILED_PRECONDITION,
    PermissionDenied: Code.PERMISSION_DENIED,
    LimitReached: Code.RESOURCE_EXHAUSTED,
    CapabilityNotSupported: Code.UNIMPLEMENTED,
    StartFailed: Code.ABORTED,
    DeadlineExceeded: Code.DEADLINE_EXCEEDED,
    Unavailable: Code.UNAVAILABLE,
    SandlotError: Code.INTERNAL,
}
_BACK: Mapping[str, type[SandlotError]] = {
    **{code.value: kind for kind, code in reversed(CODES.items())},
    Code.UNAUTHENTICATED.value: PermissionDenied,
    Code.CANCELED.value: Unavailable,
    Code.OUT_OF_RANGE.value: InvalidArgument,
}
STATUS: Mapping[str, int] = {
    "canceled": 499,
    "invalid_argument": 400,
    "deadline_exceeded": 504,
    "not_found": 404,
    "already_exists": 409,
    "permission_denied": 403,
    "resource_exhausted": 429,
    "failed_precondition": 400,
    "aborted": 409,
    "out_of_range": 400,
    "unimplemented": 501,
    "unavailable": 503,
    "unauthenticated": 401,
}
_OF_STATUS: Mapping[int, type[SandlotError]] = {
    400: InvalidArgument,
    401: PermissionDenied,
    403: PermissionDenied,
    404: CapabilityNotSupported,
    413: LimitReached,
    429: Unavailable,
    431: InvalidArgument,
    502: Unavailable,
    503: Unavailable,
    504: Unavailable,
}


def code_of(error: SandlotError) -> Code:
    return next(CODES[kind] for kind in type(error).__mro__ if kind in CODES)


def detail_of(error: SandlotError) -> ErrorDetail:
    context = error.context.items()
    return ErrorDetail(
        code=error.code,
        message=_printable(error.message),
        next_step=_printable(error.next_step),
        retryable=error.retryable,
        context={key: _printable(str(value)) for key, value in context if not _is_number(value)},
        numbers={key: int(value) for key, value in context if _is_number(value)},
    )


def _is_number(value: str | int) -> bool:
    return isinstance(value, int) and value in _INT64


def _printable(text: str) -> str:
    """Words for people: what is no UTF-8 in them is shown, not carried."""
    return text.encode(errors="backslashreplace").decode()


def to_connect(error: SandlotError) -> ConnectError:
    return ConnectError(code_of(error), _printable(str(error)), [detail_of(error)])


def to_wire(error: SandlotError) -> dict[str, object]:
    """As Connect writes it in JSON."""
    detail = detail_of(error)
    value = base64.b64encode(detail.to_binary()).decode().rstrip("=")
    shown: object = json.loads(detail.to_json())
    return {
        "code": code_of(error).value,
        "message": _printable(str(error)),
        "details": [{"type": DETAIL, "value": value, "debug": shown}],
    }


def from_wire(told: object, status: int = 0) -> SandlotError:
    """The error that a server told, whatever it is; `status` is that of HTTP, for what is not ours."""
    if not isinstance(told, dict):
        return _of_status(status)
    found = cast("dict[str, Any]", told)
    details: object = found.get("details")
    for detail in cast("list[Any]", details) if isinstance(details, list) else []:
        error = _from_detail(detail)
        if error is not None:
            return error
    code, message = found.get("code"), found.get("message")
    if not isinstance(code, str):
        return _of_status(status)
    kind = _BACK.get(code, SandlotError)
    return kind(message if isinstance(message, str) and message else code)


def _of_status(status: int) -> SandlotError:
    kind = _OF_STATUS.get(status, SandlotError)
    return kind(f"the server answered with HTTP status {status}", next_step="see whether it is a Sandlot server")


def _from_detail(detail: object) -> SandlotError | None:
    if not isinstance(detail, dict):
        return None
    told = cast("dict[str, Any]", detail)
    value: object = told.get("value")
    if told.get("type") != DETAIL or not isinstance(value, str):
        return None
    try:
        found = ErrorDetail.from_binary(base64.b64decode(value + "=" * (-len(value) % 4), validate=True))
    except (ValueError, binascii.Error, RecursionError):
        return None
    if not found.code:
        return None
    return error_from_data(found.code, found.message, found.next_step, {**found.context, **found.numbers})
