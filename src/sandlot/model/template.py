"""What a session starts from."""

from dataclasses import dataclass

BUILTIN = "builtin"


@dataclass(frozen=True, slots=True)
class Template:
    name: str
    fingerprint: str
    path: str  # of its root filesystem, on the host
