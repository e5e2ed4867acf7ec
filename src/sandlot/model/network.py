"""What a session may reach."""

from dataclasses import dataclass
from enum import StrEnum


class NetworkMode(StrEnum):
    LOOPBACK = "loopback"  # its own loopback, nothing else
    ALLOW_LIST = "allow-list"  # named domains


@dataclass(frozen=True, slots=True)
class NetworkPolicy:
    mode: NetworkMode = NetworkMode.LOOPBACK
    domains: tuple[str, ...] = ()


LOOPBACK = NetworkPolicy()
