"""Everything the program prints: for people with Rich, plain when it is piped, one JSON document when asked for."""

import dataclasses
import json
import os
import sys
import threading
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status

from sandlot.model import SandlotError, Unavailable, error_to_data


class Screen:
    """Rich is imported when something is drawn: a command that only passes bytes on starts sooner without it."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self.is_terminal = is_terminal(sys.stdout)
        self._console: Console | None = None

    @property
    def console(self) -> "Console":
        if self._console is None:
            from rich.console import Console

            self._console = Console(highlight=False, soft_wrap=True)
        return self._console

    def json(self, document: Mapping[str, object]) -> None:
        text = json.dumps(document, indent=2 if self.is_terminal else None, ensure_ascii=False, default=_plain)
        # Lone surrogates cannot be written; whoever needs such bytes finds them in a field of base64.
        self.line(text.encode(errors="replace").decode())

    def line(self, text: str = "") -> None:
        with writing("stdout"):
            print(text, flush=True)

    def note(self, text: str) -> None:
        """Beside the point of the command: on stderr, and lost where nobody looks at that any more."""
        with suppress(OSError):
            print(f"sandlot: {text}", file=sys.stderr, flush=True)

    def table(self, heads: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = ()) -> None:
        """`numbers` are the columns that are aligned to the right."""
        rows = [[printable(cell) for cell in row] for row in rows]
        if self.is_terminal:
            self._rich_table(heads, rows, numbers)
            return
        widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
        for row in (heads, *rows):
            cells = [
                cell.rjust(width) if at in numbers else cell.ljust(width)
                for at, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            self.line("  ".join(cells).rstrip())

    def _rich_table(self, heads: Sequence[str], rows: list[list[str]], numbers: Sequence[int]) -> None:
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
        for at, head in enumerate(heads):
            # The first column names the thing; half a name is of no use.
            table.add_column(head, justify="right" if at in numbers else "left", no_wrap=at == 0, overflow="fold")
        for row in rows:
            table.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
        self.console.print(table, soft_wrap=False)

    def mark(self, text: str, style: str) -> str:
        """A word in colour, where there is colour."""
        return f"\x1b[{_COLOURS[style]}m{text}\x1b[0m" if self.is_terminal and self.console.color_system else text


class TemplateProgress:
    """One line on stderr while the built-in template is made. Called from another thread."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._lock = threading.Lock()
        self._status: Status | None = None
        self._said = False
        self._closed = False
        self.entries = 0

    def __call__(self, entries: int) -> None:
        with self._lock:
            self.entries = entries
            if self._quiet or self._closed:
                return
            if not is_terminal(sys.stderr):
                if not self._said:
                    print("sandlot: making the built-in template, once for this data directory", file=sys.stderr)
                self._said = True
                return
            text = f"making the built-in template, once: {entries:,} files"
            if self._status is None:
                from rich.console import Console

                self._status = Console(stderr=True, highlight=False).status(text)
                self._status.start()
            self._status.update(text)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._status:
                self._status.stop()
                self._status = None


_STYLES = {"active": "green", "ok": "green", "failed": "red", "missing": "red", "paused": "yellow"}
_COLOURS = {"ok": "32", "missing": "31", "note": "36", "warn": "33", "bold": "1", "dim": "2"}


@contextmanager
def writing(where: str) -> Generator[None]:
    """A full disk under our output is no defect of ours. A reader who left is told apart: he wants silence."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise Unavailable(f"{where} cannot be written: {error.strerror}") from error


def is_terminal(stream: IO[str] | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False  # closed by whoever started us


def printable(text: str) -> str:
    """Text of others, harmless on a terminal: control characters and undecodable bytes as escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def decoded(text: str) -> str:
    """Text with surrogate escapes as text that every JSON reader takes."""
    return os.fsencode(text).decode(errors="replace")


def show_error(error: SandlotError, *, as_json: bool) -> None:
    """Where it cannot be shown, the exit code must do."""
    with suppress(OSError):
        if as_json:
            Screen(as_json=True).json({"error": error_to_data(error)})
            return
        print(f"sandlot: {printable(error.message)}", file=sys.stderr, flush=True)
        step = error.next_step
        if step:
            print(f"  → {printable(step)}", file=sys.stderr, flush=True)


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return dict(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    raise TypeError(f"{type(value).__name__} has no form in JSON")
