"""Every error that Sandlot raises, sorted by what the caller can do about it.

    SandlotError                     internal: a defect of ours; report it
    ├── InvalidArgument              mend the request
    ├── NotFound                     look the name up again
    │   ├── SessionNotFound
    │   ├── CallNotFound
    │   ├── ProcessNotFound
    │   ├── SnapshotNotFound
    │   ├── TemplateNotFound
    │   └── FileNotFound
    ├── Conflict                     wait, or bring the session into another state
    │   ├── SessionExists
    │   ├── SessionPaused
    │   ├── SessionDestroying
    │   ├── SessionFailed
    │   ├── InvalidState
    │   ├── RollbackInProgress
    │   ├── ToolsInFlight
    │   └── FileConflict             what is there is not what the request needs
    ├── PermissionDenied             ask as another user, or for another path
    ├── LimitReached                 ask for less, or free something
    │   ├── MaxSessionsReached
    │   └── HostFull                 what sessions may use would be more than the machine has
    ├── CapabilityNotSupported       choose another storage, runtime or machine
    │   └── SnapshotsNotAvailable
    ├── Unavailable                  try again
    │   ├── DataDirectoryHeld
    │   └── HostUnhealthy            free space or memory; sessions that are there can be used and destroyed
    ├── StartFailed                  what the template starts did not become ready: see what it printed
    └── DeadlineExceeded             give it more time, or find out why it is slow

Errors are data: a stable code, a message, a next step, a context and whether a retry can help. They cross every wire
by code. A command that fails is not an error but a result.
"""

from collections.abc import Mapping
from typing import ClassVar


class SandlotError(Exception):
    code: ClassVar[str] = "internal"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, /, *, next_step: str = "", **context: str | int) -> None:
        super().__init__(message)
        self.message = message
        self.next_step = next_step
        self.context: Mapping[str, str | int] = context

    def __str__(self) -> str:
        return f"{self.message} ({self.next_step})" if self.next_step else self.message


class InvalidArgument(SandlotError, ValueError):
    code = "invalid_argument"


class NotFound(SandlotError, LookupError):
    code = "not_found"


class SessionNotFound(NotFound):
    code = "session_not_found"


class CallNotFound(NotFound):
    code = "call_not_found"


class ProcessNotFound(NotFound):
    code = "process_not_found"


class SnapshotNotFound(NotFound):
    code = "snapshot_not_found"


class TemplateNotFound(NotFound):
    code = "template_not_found"


class FileNotFound(NotFound, FileNotFoundError):
    code = "file_not_found"


class Conflict(SandlotError):
    code = "conflict"


class SessionExists(Conflict):
    code = "session_exists"


class SessionPaused(Conflict):
    code = "session_paused"


class SessionDestroying(Conflict):
    code = "session_destroying"


class SessionFailed(Conflict):
    code = "session_failed"


class InvalidState(Conflict):
    code = "invalid_state"


class RollbackInProgress(Conflict):
    code = "rollback_in_progress"
    retryable = True


class ToolsInFlight(Conflict):
    code = "tools_in_flight"
    retryable = True


class FileConflict(Conflict, OSError):
    code = "file_conflict"


class PermissionDenied(SandlotError, PermissionError):
    code = "permission_denied"


class LimitReached(SandlotError):
    code = "limit_reached"


class MaxSessionsReached(LimitReached):
    code = "max_sessions_reached"
    retryable = True


class HostFull(LimitReached):
    code = "host_full"
    retryable = True


class CapabilityNotSupported(SandlotError):
    code = "capability_not_supported"


class SnapshotsNotAvailable(CapabilityNotSupported):
    code = "snapshots_not_available"


class Unavailable(SandlotError, ConnectionError):
    code = "unavailable"
    retryable = True


class DataDirectoryHeld(Unavailable):
    code = "data_directory_held"


class HostUnhealthy(Unavailable):
    code = "host_unhealthy"


class StartFailed(SandlotError):
    code = "start_failed"


class DeadlineExceeded(SandlotError, TimeoutError):
    code = "deadline_exceeded"
    retryable = True


def _collect(root: type[SandlotError]) -> dict[str, type[SandlotError]]:
    found = {root.code: root}
    for child in root.__subclasses__():
        found |= _collect(child)
    return found


ERRORS: Mapping[str, type[SandlotError]] = _collect(SandlotError)


def error_to_data(error: SandlotError) -> dict[str, object]:
    """The error as plain values, ready for any wire."""
    return {
        "code": error.code,
        "message": error.message,
        "next_step": error.next_step,
        "retryable": error.retryable,
        "context": dict(error.context),
    }


def error_from_data(
    code: str, message: str, next_step: str = "", context: Mapping[str, str | int] | None = None
) -> SandlotError:
    """The other way. A code that this version does not know becomes the root error and keeps its words."""
    error = ERRORS.get(code, SandlotError)(message, next_step=next_step)
    error.context = dict(context or {})
    return error
