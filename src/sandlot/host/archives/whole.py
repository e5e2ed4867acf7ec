"""What a backup tells of a host beside what is in its parts. `docs/archive.md` tells of its form.

Read as if anyone had written it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from sandlot.host.archives.reading import as_document, damaged
from sandlot.host.templates.metadata import Metadata, check
from sandlot.model import (
    InvalidArgument,
    SessionState,
    check_id,
    check_session_id,
    check_template,
    check_volume_name,
    limits,
)

FORMAT, VERSION = "sandlot backup", 2  # 1 had nothing beside the journal and the keys
STATE, JOURNAL, KEYS = "state", "/journal.db", "/keys.json"
_DIGEST_CHARS = 64
_NUMBER_MAX = 1e15


@dataclass(frozen=True, slots=True)
class SessionPart:
    section: str
    session_id: str
    state: SessionState
    template: str
    template_mark: str
    storage: str
    runtime: str
    expires: float


@dataclass(frozen=True, slots=True)
class TemplatePart:
    section: str
    record: Metadata
    names: Sequence[str]


@dataclass(frozen=True, slots=True)
class VolumePart:
    section: str
    name: str
    shared: bool
    created: float


@dataclass(frozen=True, slots=True)
class Whole:
    taken: float
    sessions: Sequence[SessionPart]
    templates: Sequence[TemplatePart]
    volumes: Sequence[VolumePart]
    left_out: Mapping[str, str]  # sessions, and why


def to_document(whole: Whole) -> Mapping[str, object]:
    return {
        "format": FORMAT,
        "version": VERSION,
        "taken": whole.taken,
        "sessions": [
            {name: getattr(each, name) for name in SessionPart.__dataclass_fields__} for each in whole.sessions
        ],
        "templates": [
            {"section": each.section, "record": each.record.to_text(), "names": list(each.names)}
            for each in whole.templates
        ],
        "volumes": [{name: getattr(each, name) for name in VolumePart.__dataclass_fields__} for each in whole.volumes],
        "left_out": dict(whole.left_out),
    }


def from_document(document: Mapping[str, object]) -> Whole:
    """Raises InvalidArgument for anything that no engine of ours has written."""
    if document.get("format") != FORMAT:
        raise damaged("it is no backup of a host")
    version = document.get("version")
    if not isinstance(version, int) or not 1 <= version <= VERSION:
        raise InvalidArgument(
            f"the backup is of version {str(version)[:32]}, and this engine reads up to {VERSION}",
            next_step="use the newer release that wrote it",
        )
    try:
        whole = Whole(
            _number(document, "taken"),
            [_session(told) for told in _list(document, "sessions", limits.BACKUP_PARTS_MAX)],
            [_template(told) for told in _list(document, "templates", limits.BACKUP_PARTS_MAX)],
            [_volume(told) for told in _list(document, "volumes", limits.BACKUP_PARTS_MAX)],
            {check_session_id(name): str(why)[:500] for name, why in as_document(document["left_out"]).items()},
        )
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
        if isinstance(error, InvalidArgument):
            raise
        raise damaged(f"its manifest cannot be read ({type(error).__name__})") from None
    parts = [*whole.sessions, *whole.templates, *whole.volumes]
    names = [each.session_id for each in whole.sessions], [each.name for each in whole.volumes]
    if any(len(set(one)) != len(one) for one in ([each.section for each in parts], *names)):
        raise damaged("a part of it comes twice")
    return whole


def _session(told: Mapping[str, object]) -> SessionPart:
    return SessionPart(
        _section(told, "sessions"),
        check_session_id(str(told["session_id"])),
        SessionState(str(told["state"])),
        check_template(str(told["template"])),
        str(told["template_mark"])[:200],
        check_id("storage", str(told["storage"])),
        check_id("runtime", str(told["runtime"])),
        _number(told, "expires"),
    )


def _template(told: Mapping[str, object]) -> TemplatePart:
    record = Metadata.from_text(str(told["record"]))
    check(record)
    digest = record.digest.removeprefix("sha256:")
    if record.digest == digest or len(digest) != _DIGEST_CHARS or set(digest) - set("0123456789abcdef"):
        raise damaged("a template of it has no digest")
    names = [check_template(str(name)) for name in _words(told, "names")]
    return TemplatePart(_section(told, "templates"), record, names)


def _volume(told: Mapping[str, object]) -> VolumePart:
    name = check_volume_name(str(told["name"]))
    return VolumePart(_section(told, "volumes"), name, told["shared"] is True, _number(told, "created"))


def _section(told: Mapping[str, object], above: str) -> str:
    section = str(told["section"])
    folder, _, number = section.partition("/")
    if folder != above or not number.isdigit() or len(number) > 8:
        raise damaged("a part of it has no place")
    return section


def _number(told: Mapping[str, object], name: str) -> float:
    value = told[name]
    if not isinstance(value, int | float) or not abs(value) < _NUMBER_MAX:  # also what is no number at all
        raise damaged(f"{name} is no number")
    return float(value)


def _words(told: Mapping[str, object], name: str) -> list[object]:
    value = told[name]
    if not isinstance(value, list):
        raise damaged(f"{name} is no list")
    return cast("list[object]", value)


def _list(told: Mapping[str, object], name: str, most: int) -> list[Mapping[str, object]]:
    value = _words(told, name)
    if len(value) > most:
        raise damaged(f"it has more than {most} {name}")
    return [as_document(each) for each in value]
