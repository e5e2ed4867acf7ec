"""What is known of a template that was made here: written beside its root, once, before it has a name."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, cast

from sandlot.model import InvalidArgument, SandlotError, Start, TemplateInfo, check_envs, check_labels, limits

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Metadata:
    digest: str
    source: str
    created: float
    size_bytes: int
    entries: int
    user: str = ""
    cwd: str = ""
    envs: Mapping[str, str] = field(default_factory=dict[str, str])
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    left_out: Mapping[str, int] = field(default_factory=dict[str, int])
    format: int = FORMAT
    start: Start | None = None

    def to_text(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"

    @classmethod
    def from_text(cls, text: str) -> "Metadata":
        """Raises ValueError, TypeError."""
        known = cast("dict[str, Any]", json.loads(text))
        if known.get("format") != FORMAT:
            raise ValueError(f"format {known.get('format')}")
        known["entrypoint"], known["command"] = tuple(known["entrypoint"]), tuple(known["command"])
        known["start"] = Start.from_document(known.get("start"))
        return cls(**known)

    def info(self, names: tuple[str, ...], used: float, sessions: int) -> TemplateInfo:
        fields = {name: value for name, value in asdict(self).items() if name not in ("format", "start")}
        return TemplateInfo(**fields, names=names, used=used, sessions=sessions, start=self.start)

    def starting(self, start: Start | None) -> "Metadata":
        """With another start command, if there is one. Raises InvalidArgument when it is what the image says, and that
        says nothing."""
        if start is None:
            return self
        argv = start.argv or (*self.entrypoint, *self.command)
        if not argv:
            raise InvalidArgument(
                "the image has neither ENTRYPOINT nor CMD that could be started", next_step="say what to start"
            )
        return replace(self, start=replace(start, argv=argv))

    def addressed(self, layers: list[str]) -> "Metadata":
        """With the digest of what it is made of."""
        parts = [self.user, self.cwd, dict(self.envs), self.entrypoint, self.command, dict(self.labels), layers]
        if self.start is not None:
            parts.append(asdict(self.start))
        text = json.dumps([FORMAT, *parts], sort_keys=True)
        return replace(self, digest=f"sha256:{hashlib.sha256(text.encode()).hexdigest()}")


def from_config(config: Mapping[str, Any]) -> Metadata:
    """What an image says of its commands; from a stranger, so each word is checked. Raises InvalidArgument."""
    envs: dict[str, str] = {}
    for one in _words(config.get("Env"), "Env"):
        key, equals, value = one.partition("=")
        if equals and key:
            envs[key] = value
    cwd = config.get("WorkingDir") or ""
    user = config.get("User") or "0"
    labels: object = config.get("Labels") or {}
    if not isinstance(cwd, str) or not isinstance(user, str) or not isinstance(labels, dict):
        raise InvalidArgument("the image has a configuration of another form")
    told = Metadata(
        digest="",
        source="",
        created=0.0,
        size_bytes=0,
        entries=0,
        user=user,
        cwd=cwd if cwd.startswith("/") or not cwd else f"/{cwd}",
        envs=envs,
        entrypoint=_words(config.get("Entrypoint"), "Entrypoint"),
        command=_words(config.get("Cmd"), "Cmd"),
        labels=_labels(cast("dict[object, object]", labels)),
    )
    check(told)
    return told


def _labels(given: Mapping[object, object]) -> dict[str, str]:
    """Of no consequence here; those that do not fit are left out."""
    pairs = ((str(key), str(value)) for key, value in given.items())
    fitting = [
        (key, value)
        for key, value in pairs
        if 0 < len(key) <= limits.LABEL_KEY_CHARS_MAX and len(value) <= limits.LABEL_VALUE_CHARS_MAX
    ]
    return dict(fitting[: limits.LABELS_MAX])


def check(told: Metadata) -> None:
    """Raises InvalidArgument."""
    if len(told.to_text()) > limits.TEMPLATE_TEXT_BYTES_MAX:
        raise InvalidArgument("the image brings too many variables, labels and words", limit="template_text")
    try:
        check_envs(told.envs)
        check_labels(told.labels)
    except SandlotError as error:
        raise InvalidArgument(f"the image cannot be taken: {error.message}") from error
    if len(told.user) > 63 or "\0" in f"{told.user}{told.cwd}{''.join((*told.entrypoint, *told.command))}":
        raise InvalidArgument("the image has a user, a directory or a command that cannot be")


def _words(value: object, what: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        return ("/bin/sh", "-c", value)
    listed = cast("list[object]", value) if isinstance(value, list) else [None]
    if not all(isinstance(one, str) for one in listed):
        raise InvalidArgument(f"the image has a field {what} of another form")
    return tuple(cast("list[str]", listed))
