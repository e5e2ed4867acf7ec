"""What is kept of a context beside its runs, in a file: what an engine that comes later must know of it."""

import json
import os
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from sandlot.host.code_languages import LANGUAGES
from sandlot.host.code_log import new_mark
from sandlot.host.process_run import FIRST_CONTEXT
from sandlot.model import CallResult, CapabilityNotSupported, LimitHit, SandlotError, Unavailable

_GENERATION_BITS = 16
_NOT_FOUND = 127


@dataclass(frozen=True, slots=True)
class ContextRow:
    serial: int
    context_id: str
    language: str
    cwd: str
    envs: dict[str, str]
    user: str | None
    asked_cwd: str | None
    started: float
    generation: int
    mark: str
    past: int = 0  # runs up to this number were heard before its memory went back: they say nothing of where it is

    @property
    def number(self) -> int:
        """What its guest knows it by."""
        return FIRST_CONTEXT + (self.serial << _GENERATION_BITS) + self.generation

    def again(self, started: float) -> "ContextRow":
        """Under another number: its guest may still speak of the one before."""
        return replace(self, generation=self.generation + 1, mark=new_mark(), started=started)

    def story_path(self, folder: Path, number: int) -> Path:
        return folder / f"k{self.serial}-{number}.story"

    def story_paths(self, folder: Path) -> list[Path]:
        return list(folder.glob(f"k{self.serial}-*.story"))

    def write(self, folder: Path) -> None:
        """Blocking. Raises OSError."""
        folder.mkdir(mode=0o700, exist_ok=True)
        path = _path(folder, self.serial)
        fresh = path.with_suffix(".fresh")
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
            json.dump(asdict(self), file)
        fresh.replace(path)

    def remove(self, folder: Path) -> None:
        """Blocking."""
        _path(folder, self.serial).unlink(missing_ok=True)

    @classmethod
    def found(cls, folder: Path, number: int) -> "ContextRow | None":
        """Blocking: of the context that a guest knows by this number."""
        try:
            row = cls(**json.loads(_path(folder, serial_of(number)).read_bytes()))
        except (OSError, ValueError, TypeError):
            return None
        return row if row.number == number else None


def _path(folder: Path, serial: int) -> Path:
    return folder / f"k{serial}.context"


def serial_of(number: int) -> int:
    return (number - FIRST_CONTEXT) >> _GENERATION_BITS


def new_serial() -> int:
    """Never the same twice, also after an engine that nobody remembers: its guest might speak of the first one."""
    return time.time_ns() // 1_000_000


def remove_others(folder: Path, there: set[int], before: int) -> None:
    """Blocking: files of contexts that are no more. Those that are made meanwhile are later."""
    for path in (*folder.glob("k*.context"), *folder.glob("k*.story"), *folder.glob("k*.fresh")):
        serial = path.stem[1:].partition("-")[0]
        if serial.isdigit() and int(serial) < before and int(serial) not in there:
            path.unlink(missing_ok=True)


def end_reason(result: CallResult) -> str:
    if result.limit is LimitHit.OOM:
        return "its session had no memory left, and its program was ended"
    if result.reason:
        return result.reason
    if result.signal is not None:
        return f"its program was ended by signal {result.signal}"
    return f"its program ended with {result.exit_code}"


def start_failure(language: str, result: CallResult) -> SandlotError:
    program = LANGUAGES[language].program
    if result.exit_code == _NOT_FOUND:
        return CapabilityNotSupported(
            f"the session has no {program}, which contexts of {language} need",
            next_step=f"use a template that has {program}",
        )
    return Unavailable(f"the context ended before it answered: {end_reason(result)}", next_step="try again")
