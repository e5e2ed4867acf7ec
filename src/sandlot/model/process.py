"""A managed, named, long-lived program in a session."""

from dataclasses import dataclass
from enum import StrEnum


class ProcessState(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    EXITED = "exited"


@dataclass(frozen=True, slots=True)
class Process:
    session_id: str
    process_id: str
    argv: tuple[str, ...]
    state: ProcessState
    exit_code: int | None = None  # None until exit, 128 + n after signal n
    address: str = ""  # host:port of its exposed port, or empty
