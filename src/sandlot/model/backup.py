"""All that a host holds, as one file, and what came out of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sandlot.model.ids import check_id
from sandlot.model.session import AUTO

# In the data directory, and of those who write them; a backup has them too.
AUDIT_FOLDER = "audit"
AUDIT_ANCHOR = "audit.anchor"
WEBHOOKS_FOLDER = "webhooks"
KEYS_TOLD_FILE = "keys.told"


@dataclass(frozen=True, slots=True)
class RestoreRequest:
    storage: str | None = None  # for all sessions; None: the one that each had, where that can be had here
    templates_here: bool = False  # a session whose template is of another build takes the one of that name here

    def __post_init__(self) -> None:
        if self.storage is not None and self.storage != AUTO:
            check_id("storage", self.storage)


@dataclass(frozen=True, slots=True)
class Restored:
    """What is there now."""

    taken: float  # when the backup was
    sessions: tuple[str, ...] = ()
    templates: tuple[str, ...] = ()  # digests of those that were made
    volumes: tuple[str, ...] = ()
    has_keys: bool = False
    left_out: Mapping[str, str] = field(default_factory=dict[str, str])  # sessions without files then, and why
