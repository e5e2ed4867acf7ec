"""What of a request a session needs again with every call."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from sandlot.contracts.runtime import MountPlan
from sandlot.model import OnExpiry, Resources, SessionSpec, Start, Template


@dataclass(frozen=True, slots=True)
class Wishes:
    """What of a request a session needs again with every call; kept in the journal as text."""

    labels: Mapping[str, str]
    envs: Mapping[str, str]
    user: str
    call_snapshots: bool = False
    resources: Resources = field(default_factory=Resources)
    unlimited: tuple[str, ...] = ()  # defaults that could not be enforced
    on_expiry: str = OnExpiry.DESTROY
    idle_timeout_s: float | None = None
    cwd: str = ""  # where commands start, if the template says
    start: Start | None = None  # what runs from the beginning, if the template says
    mounts: tuple[MountPlan, ...] = ()

    @classmethod
    def of(cls, spec: SessionSpec, user: str, resources: Resources, unlimited: tuple[str, ...]) -> "Wishes":
        kept = (spec.call_snapshots, resources, unlimited, spec.on_expiry, spec.idle_timeout_s)
        return cls(dict(spec.labels), dict(spec.envs), user, *kept)

    def below(self, template: Template, *, starts: bool = True) -> "Wishes":
        """With what the template says where the request said nothing."""
        start = template.start if starts else None
        if not (template.envs or template.cwd or start or self.cwd or self.start):
            return self
        return replace(self, envs={**template.envs, **self.envs}, cwd=template.cwd, start=start)

    def to_text(self) -> str:
        """As `asdict` tells it, which takes ten times as long; what is rarely there is left to it."""
        told: dict[str, Any] = {name: getattr(self, name) for name in _FIELDS}
        told["resources"] = {name: getattr(self.resources, name) for name in _RESOURCES}
        told["start"] = self.start and asdict(self.start)
        told["mounts"] = [asdict(mount) for mount in self.mounts]
        return json.dumps(told)

    @classmethod
    def from_text(cls, text: str) -> "Wishes":
        """Of this release or an earlier one, whose sessions have no limits."""
        known = json.loads(text)
        known["resources"] = Resources(**known.get("resources", {}))
        known["unlimited"] = tuple(known.get("unlimited", ()))
        known["start"] = Start.from_document(known.get("start"))
        known["mounts"] = tuple(_mount(told) for told in known.get("mounts", ()))
        return cls(**known)


_FIELDS = tuple(each.name for each in fields(Wishes))
_RESOURCES = tuple(each.name for each in fields(Resources))


def _mount(told: dict[str, Any]) -> MountPlan:
    owner = told.pop("owner")
    return MountPlan(**told, owner=owner and (owner[0], owner[1], owner[2]))
