"""What the doctor says of one thing."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

MOUNT_PROC = "mount it: `mount -t proc proc /proc`"


class Verdict(StrEnum):
    OK = "ok"
    MISSING = "missing"
    NOTE = "note"  # good to know; isolation does not depend on it


class Section(StrEnum):
    """In the order in which they are shown."""

    RIGHTS = "rights"
    KERNEL = "kernel"
    LIMITS = "limits"
    DATA = "data directory"
    TEMPLATE = "template"
    ENGINE = "engine"


@dataclass(frozen=True, slots=True)
class Check:
    section: Section
    name: str
    verdict: Verdict
    detail: str
    next_step: str = ""


def guarded(section: Section, name: str, look: Callable[[], Iterator[Check]]) -> Iterator[Check]:
    """Whatever is odd about a machine must not keep the rest from being told."""
    try:
        yield from look()
    except Exception as error:  # noqa: BLE001 - a machine that surprises us is what people ask the doctor about
        said = f"{type(error).__name__}: {error}"
        yield Check(section, name, Verdict.NOTE, f"could not be looked at: {said}", "report it, with this line")


def read(path: str | Path) -> str:
    """Empty for what cannot be read."""
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
