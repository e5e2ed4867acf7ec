"""What the SDK gives back of a run of code. Both faces share it."""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sandlot.model import CHART, TABLE, CodeError, CodeResult, CodeStatus, SandlotError

_TAIL_CHARS = 2000
_SUFFIXES = {
    "image/png": "png",
    "image/jpeg": "jpg",
    "image/svg+xml": "svg",
    "application/pdf": "pdf",
}


@dataclass(frozen=True, slots=True)
class Shown:
    """Something that code showed, in each form that it has; a form that it does not have is None."""

    data: Mapping[str, str]  # by media type: text as it is, JSON as its text, anything else in base64
    is_main: bool = False  # the value of the last expression

    @property
    def text(self) -> str | None:
        return self.data.get("text/plain")

    @property
    def html(self) -> str | None:
        return self.data.get("text/html")

    @property
    def markdown(self) -> str | None:
        return self.data.get("text/markdown")

    @property
    def latex(self) -> str | None:
        return self.data.get("text/latex")

    @property
    def javascript(self) -> str | None:
        return self.data.get("application/javascript")

    @property
    def svg(self) -> str | None:
        return self.data.get("image/svg+xml")

    @property
    def png(self) -> bytes | None:
        return self._bytes("image/png")

    @property
    def jpeg(self) -> bytes | None:
        return self._bytes("image/jpeg")

    @property
    def pdf(self) -> bytes | None:
        return self._bytes("application/pdf")

    @property
    def json(self) -> Any:
        return self._json("application/json")

    @property
    def chart(self) -> dict[str, Any] | None:
        """What a figure shows: its type, title, labels and elements."""
        return self._json(CHART)

    @property
    def table(self) -> dict[str, Any] | None:
        """A table, as lists by the names of its columns."""
        return self._json(TABLE)

    def formats(self) -> list[str]:
        """The media types that it has."""
        return sorted(self.data)

    def pictures(self) -> list[tuple[str, bytes]]:
        """What is to be looked at, each as the end of a file's name and what is in the file."""
        found: list[tuple[str, bytes]] = []
        for media, suffix in _SUFFIXES.items():
            if media in self.data:
                text = self.data[media]
                found.append((suffix, text.encode() if media == "image/svg+xml" else base64.b64decode(text)))
        return found

    def _bytes(self, media: str) -> bytes | None:
        return base64.b64decode(self.data[media]) if media in self.data else None

    def _json(self, media: str) -> Any:
        return json.loads(self.data[media]) if media in self.data else None


@dataclass(frozen=True, slots=True)
class Execution:
    """How a run ended, and what it printed and showed. Code that fails is a result like any other."""

    run: CodeResult
    stdout: str = field(repr=False)
    stderr: str = field(repr=False)
    results: tuple[Shown, ...]
    error: CodeError | None

    @property
    def id(self) -> str:
        return self.run.execution_id

    @property
    def context_id(self) -> str:
        return self.run.context_id

    @property
    def count(self) -> int:
        """Which run of its context it was."""
        return self.run.count

    @property
    def status(self) -> CodeStatus:
        return self.run.status

    @property
    def ok(self) -> bool:
        return self.run.status is CodeStatus.OK

    @property
    def main(self) -> Shown | None:
        """The value of the last expression, when it has one."""
        return next((shown for shown in self.results if shown.is_main), None)

    @property
    def text(self) -> str | None:
        """The same, as text."""
        return self.main.text if self.main else None

    @property
    def truncated(self) -> bool:
        """Whether something that it printed or showed was too large, and is missing here."""
        return self.run.truncated

    @property
    def duration_s(self) -> float:
        return self.run.duration_s

    def check(self) -> "Execution":
        """Itself. Raises CodeFailed unless it succeeded."""
        if not self.ok:
            raise CodeFailed(self)
        return self


class CodeFailed(SandlotError):
    """Code did not succeed, and the caller had asked to be told with `check`."""

    code = "code_failed"

    def __init__(self, execution: Execution) -> None:
        run, error = execution.run, execution.error
        how = {
            CodeStatus.TIMEOUT: f"it reached its timeout after {run.duration_s:.1f} s",
            CodeStatus.INTERRUPTED: "it was interrupted",
            CodeStatus.LOST: f"its context was lost: {run.reason}",
        }.get(run.status, f"{error.name}: {error.value}" if error else "an error")
        said = error.traceback.strip()[-_TAIL_CHARS:] if error else ""
        super().__init__(f"the code failed: {how}" + (f"\n{said}" if said else ""), execution_id=run.execution_id)
        self.execution = execution

    def __reduce__(self) -> tuple[type["CodeFailed"], tuple[Execution]]:
        return type(self), (self.execution,)
