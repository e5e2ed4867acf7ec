"""What a template starts by itself, and when that is ready."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sandlot.model import limits
from sandlot.model.call import check_text
from sandlot.model.errors import InvalidArgument

_FORMS = "running, port PORT, http PORT [PATH], or log TEXT"


class ReadyKind(StrEnum):
    RUNNING = "running"  # as soon as it runs
    PORT = "port"  # someone takes connections there
    HTTP = "http"  # a GET is answered with a status from 200 to 399
    LOG = "log"  # it has printed a text


@dataclass(frozen=True, slots=True)
class Ready:
    kind: ReadyKind = ReadyKind.RUNNING
    port: int = 0
    text: str = ""  # the path of HTTP, the text of LOG

    def __post_init__(self) -> None:
        if self.kind in (ReadyKind.PORT, ReadyKind.HTTP):
            limits.within("port", self.port, 1, 65535)
        if self.kind is ReadyKind.HTTP and not (self.text.startswith("/") and _is_word(self.text)):
            raise InvalidArgument("the path of a readiness is one word that begins with /", next_step=f"it is {_FORMS}")
        if self.kind is ReadyKind.LOG and not self.text.strip():
            raise InvalidArgument("a text to wait for is missing", next_step=f"it is {_FORMS}")
        check_text("what a start command waits for", self.text)
        limits.at_most("characters of a readiness", len(self.text), limits.READY_CHARS_MAX)

    def __str__(self) -> str:
        return " ".join(str(part) for part in (self.kind, self.port or "", self.text) if part)

    @classmethod
    def parse(cls, text: str) -> "Ready":
        """`running`, `port 8000`, `http 8000 /health`, `log "now serving"`. Raises InvalidArgument."""
        word, _, rest = text.strip().partition(" ")
        try:
            kind, words = ReadyKind(word.lower()), shlex.split(rest)
        except ValueError:
            raise InvalidArgument(f"{text[:60]!r} is no readiness", next_step=f"it is {_FORMS}") from None
        match kind, words:
            case ReadyKind.RUNNING, []:
                return cls()
            case ReadyKind.PORT, [port] if _is_number(port):
                return cls(kind, int(port))
            case ReadyKind.HTTP, [port] if _is_number(port):
                return cls(kind, int(port), "/")
            case ReadyKind.HTTP, [port, path] if _is_number(port):
                return cls(kind, int(port), path)
            case ReadyKind.LOG, [_, *_]:
                return cls(kind, 0, " ".join(words))
            case _:
                raise InvalidArgument(f"{text[:60]!r} is no readiness", next_step=f"it is {_FORMS}")


@dataclass(frozen=True, slots=True)
class Start:
    """A command that runs in every session from its beginning."""

    argv: tuple[str, ...]  # empty: what the image says, ENTRYPOINT and CMD
    ready: Ready = Ready()
    timeout_s: float = limits.READY_TIMEOUT_S  # to be ready

    def __post_init__(self) -> None:
        limits.at_most("arguments", len(self.argv), limits.ARGUMENTS_MAX)
        check_text("an argument", *self.argv)
        if self.argv and not self.argv[0]:
            raise InvalidArgument("a start command needs a program")
        limits.within("timeout_s", self.timeout_s, 0.1, limits.READY_TIMEOUT_S_MAX)

    @classmethod
    def of(cls, command: str | Sequence[str] | None, ready: str | None, timeout_s: float | None) -> "Start | None":
        """As users say it: a text is given to the shell; a readiness alone means what the image says. Raises
        InvalidArgument."""
        if command is None and ready is None:
            return None
        argv = ("/bin/sh", "-c", command) if isinstance(command, str) else tuple(command or ())
        told = Ready() if ready is None else Ready.parse(ready)
        return cls(argv, told, limits.READY_TIMEOUT_S if timeout_s is None else timeout_s)

    @classmethod
    def from_document(cls, told: Mapping[str, Any] | None) -> "Start | None":
        """As `asdict` and JSON make one. Raises InvalidArgument, KeyError, TypeError, ValueError."""
        if told is None:
            return None
        ready = told["ready"]
        kind = Ready(ReadyKind(ready["kind"]), int(ready["port"]), str(ready["text"]))
        return cls(tuple(str(word) for word in told["argv"]), kind, float(told["timeout_s"]))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 5


def _is_word(text: str) -> bool:
    return text.isascii() and text.isprintable() and " " not in text
