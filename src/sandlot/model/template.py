"""What a session starts from, and how one is made."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from sandlot.model.errors import InvalidArgument
from sandlot.model.ids import check_id, check_session_id
from sandlot.model.start import Start

BUILTIN = "builtin"
LATEST = "latest"  # the tag of a name that has none
_DIGEST = re.compile(r"sha256:[0-9a-f]{12,64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Template:
    name: str
    fingerprint: str
    path: str  # of its root filesystem, on the host
    envs: Mapping[str, str] = field(default_factory=dict[str, str])  # below those of the session
    user: str = ""  # who commands run as; empty: the host's default
    cwd: str = ""  # where commands start; empty: the workspace
    start: Start | None = None


@dataclass(frozen=True, slots=True)
class TemplateInfo:
    digest: str  # of what it was made of; two that are made of the same are one
    names: tuple[str, ...]  # NAME:TAG
    source: str  # what it was made from, in words
    created: float
    used: float  # when a session was last made from it
    size_bytes: int
    entries: int
    user: str = ""
    cwd: str = ""
    envs: Mapping[str, str] = field(default_factory=dict[str, str])
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    left_out: Mapping[str, int] = field(default_factory=dict[str, int])  # what was in the source and is not in it
    sessions: int = 0  # that stand on it
    start: Start | None = None  # what its sessions run from their beginning


@dataclass(frozen=True, slots=True)
class TemplateStep:
    """How far the making of a template is."""

    stage: str  # what is being done, in words
    done: int = 0
    total: int | None = None  # None: not known
    entries: int = 0


@dataclass(frozen=True, slots=True)
class TemplateImport:
    """From a file or a directory of the host: a root filesystem as a tree or as a tar, an OCI image layout, or what
    `docker save` writes. Which of them it is, is found out."""

    path: str
    name: str
    reference: str = ""  # which image, where the file holds several
    start: Start | None = None

    def __post_init__(self) -> None:
        check_new_name(self.name)
        if not self.path.startswith("/") or "\0" in self.path:
            raise InvalidArgument("the path of an import is an absolute path of the host")


@dataclass(frozen=True, slots=True)
class TemplatePull:
    """From a registry, by the OCI distribution protocol: the image for this machine."""

    reference: str  # HOST[:PORT]/REPOSITORY[:TAG][@DIGEST]
    name: str
    auth_file: str = ""  # of the host, as `docker login` writes it
    insecure: bool = False  # without TLS, which is only done on loopback otherwise
    start: Start | None = None

    def __post_init__(self) -> None:
        check_new_name(self.name)
        if not self.reference or len(self.reference) > 1000 or not self.reference.isprintable():
            raise InvalidArgument("a reference is HOST/REPOSITORY:TAG")


@dataclass(frozen=True, slots=True)
class TemplateConfig:
    """What commands of its sessions get."""

    user: str = ""
    cwd: str = ""
    envs: Mapping[str, str] = field(default_factory=dict[str, str])
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    start: Start | None = None


@dataclass(frozen=True, slots=True)
class TemplateSnapshot:
    """From a snapshot of a session: all of its files, those of its template included."""

    session_id: str
    snapshot: str  # its name, or the number of a turn
    name: str = ""  # empty: it has a digest only
    config: TemplateConfig | None = None  # None: as the template that the session stands on
    start: Start | None = None  # None: as the configuration says

    def __post_init__(self) -> None:
        check_session_id(self.session_id)
        check_id("snapshot", self.snapshot)
        if self.name:
            check_new_name(self.name)


TemplateRequest = TemplateImport | TemplatePull | TemplateSnapshot
TemplateEvent = TemplateStep | TemplateInfo  # how far it is, and last what was made


def split_name(text: str) -> tuple[str, str]:
    name, colon, tag = text.partition(":")
    return name, tag if colon else LATEST


def is_digest(text: str) -> bool:
    return bool(_DIGEST.fullmatch(text))


def check_template(text: str) -> str:
    """NAME, NAME:TAG, or a digest of which the first 12 digits are enough. Raises InvalidArgument."""
    if not is_digest(text):
        name, tag = split_name(text)
        check_id("template", name)
        check_id("template tag", tag)
    return text


def check_new_name(text: str) -> str:
    """NAME or NAME:TAG that a user gives. Raises InvalidArgument."""
    check_template(text)
    if is_digest(text) or text.startswith("sha256:"):
        raise InvalidArgument("a digest is no name", next_step="choose a name such as debian:12")
    if split_name(text)[0] == BUILTIN:
        raise InvalidArgument(f"{BUILTIN} is the template of the host itself", next_step="choose another name")
    return text
