"""What a server logs: a line for a person, or a JSON document for a program. Each names the request that it is of."""

import json
import logging
import sys
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TextIO

from sandlot.server.redaction import HIDDEN, is_secret, redact

REQUEST: ContextVar[str] = ContextVar("request", default="")
TRACE: ContextVar[str] = ContextVar("trace", default="")
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}
_LINE_CHARS_MAX = 16_000


class _Lines(logging.Formatter):
    """Secrets are taken out of the whole line, after it was made: nothing can get around it."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
        words = " ".join(f"{name}={_shown(value)}" for name, value in fields(record).items())
        line = f"{moment} {record.levelname.lower():<7} {one_line(record.getMessage())}{' ' if words else ''}{words}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return redact(line[:_LINE_CHARS_MAX])


class _Documents(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        document: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redact(record.getMessage()[:_LINE_CHARS_MAX]),
            **fields(record),
        }
        if record.exc_info:
            document["exception"] = redact(self.formatException(record.exc_info)[:_LINE_CHARS_MAX])
        return json.dumps(document, default=str)


def fields(record: logging.LogRecord) -> dict[str, object]:
    """What was given as `extra`, and which request it is of."""
    found: dict[str, object] = {}
    if request := REQUEST.get():
        found["request"] = request
    if trace := TRACE.get():
        found["trace"] = trace
    for name, value in vars(record).items():
        if name not in _OWN:
            found[name] = HIDDEN if is_secret(name) else redact(value) if isinstance(value, str) else value
    return found


def one_line(text: str) -> str:
    """What is told may be anybody's: it makes no line of its own, and does nothing to a terminal."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def _shown(value: object) -> str:
    text = str(value)
    plain = text.isprintable() and not any(char.isspace() or char in '"=' for char in text)
    return text if text and plain else json.dumps(text)


def configure(level: str, form: str, stream: TextIO | None = None) -> logging.Handler:
    """All that the program says. Called again it changes the level and the form."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_Documents() if form == "json" else _Lines())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    for name in ("sandlot", "uvicorn", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [], True
    set_level(level)
    return handler


def set_level(level: str) -> None:
    logging.getLogger("sandlot").setLevel(level.upper())
