"""The audit log of a data directory, for those who read it."""

from collections.abc import Iterator
from pathlib import Path

from sandlot.audit.chain import Place
from sandlot.audit.files import ANCHOR_FILE, FOLDER
from sandlot.audit.verifying import Verdict, records_of, verify


class AuditReader:
    """It may be written meanwhile."""

    def __init__(self, data: Path, anchor: Path | None) -> None:
        self._folder = data / FOLDER
        self._anchor = anchor or data / ANCHOR_FILE

    def lines(self) -> Iterator[bytes]:
        """Raises OSError."""
        return records_of(self._folder)

    def verify(self, known: tuple[int, str] | None) -> Verdict:
        """Raises OSError."""
        return verify(self._folder, self._anchor, Place(*known) if known else None)


__all__ = ["AuditReader", "Verdict"]
