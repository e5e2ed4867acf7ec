"""Who may ask: tenants, and the keys that they show."""

import re
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


@dataclass(frozen=True, slots=True)
class KeyInfo:
    """A key without its secret, which nobody keeps."""

    key_id: str
    name: str
    tenant: str  # empty: of the operator
    scope: Scope
    created: float
    expires: float | None = None
    revoked: float | None = None

    def is_good(self, now: float) -> bool:
        return self.revoked is None and (self.expires is None or now < self.expires)


@dataclass(frozen=True, slots=True)
class NewKey:
    info: KeyInfo
    secret: str  # the whole key, told once

    def __repr__(self) -> str:
        return f"NewKey({self.info!r})"


def check_tenant(name: str) -> str:
    """Raises InvalidArgument."""
    if not _NAME.fullmatch(name):
        raise InvalidArgument(
            f"{name[:40]!r} is no name of a tenant", next_step="use 1 to 32 lower-case letters, digits and '-'"
        )
    return name
