"""Who may ask: tenants, and the keys that they show."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from sandlot.model.errors import InvalidArgument

KEYS_FILE = "keys.json"  # in the data directory; once it is there, nobody is served without a key
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?", re.ASCII)


class Scope(StrEnum):
    """What a key is good for. Each holds those before it."""

    READ = "read"  # look, change nothing
    USE = "use"  # sessions of one's own tenant, and all that is in them
    OPERATE = "operate"  # the whole host: every tenant's sessions, templates, volumes, keys

    def holds(self, other: "Scope") -> bool:
        order = tuple(Scope)
        return order.index(self) >= order.index(other)


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """What one tenant may have at most; None: as much as the host has."""

    sessions: int | None = None
    requests_per_s: float | None = None
    cpus: float | None = None  # of all of its sessions together, as each asked for; so are the next two
    memory_bytes: int | None = None
    disk_bytes: int | None = None

    @property
    def together(self) -> Mapping[str, float]:
        """What all sessions together may have, by the names that `Resources` has."""
        found = {"cpus": self.cpus, "memory_bytes": self.memory_bytes, "disk_bytes": self.disk_bytes}
        return {name: most for name, most in found.items() if most is not None}


@dataclass(frozen=True, slots=True)
class KeyInfo:
    """A key without its secret, which nobody keeps; or a token of it."""

    key_id: str
    name: str
    tenant: str  # empty: of the operator
    scope: Scope
    created: float
    expires: float | None = None
    revoked: float | None = None
    session: str = ""  # of a token: the only one that it reaches

    @property
    def who(self) -> str:
        """Whoever shows it, in one word: what is handed out on his behalf, and what is told of him, has it."""
        return f"{self.key_id}~{self.scope}~{self.expires or 0:.0f}~{self.session}" if self.session else self.key_id

    def is_good(self, now: float) -> bool:
        return self.revoked is None and (self.expires is None or now < self.expires)


@dataclass(frozen=True, slots=True)
class NewKey:
    info: KeyInfo
    secret: str  # the whole key, told once

    def __repr__(self) -> str:
        return f"NewKey({self.info!r})"


def check_scope(word: str) -> Scope:
    """Raises InvalidArgument."""
    try:
        return Scope(word)
    except ValueError:
        raise InvalidArgument(f"{word!r} is no scope", next_step=f"use one of: {', '.join(Scope)}") from None


def check_tenant(name: str) -> str:
    """Raises InvalidArgument."""
    if not _NAME.fullmatch(name):
        raise InvalidArgument(
            f"{name[:40]!r} is no name of a tenant", next_step="use 1 to 32 lower-case letters, digits and '-'"
        )
    return name
