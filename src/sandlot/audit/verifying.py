"""Whether a log is what was written: every line in its place, nothing cut off at either end."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sandlot.audit import anchor as anchors
from sandlot.audit.chain import BEGINNING, Place, hash_of, place_of, stands_last
from sandlot.audit.files import files_in, lines_of

_FINDINGS_MAX = 20
_ANCHORLESS = b'"verb":"audit","phase":"anchor missing"'  # nothing that is told of can say this: its quotes are escaped
_AGAIN = 3  # a log that is being written may be turned over just now


@dataclass(frozen=True, slots=True)
class Verdict:
    records: int
    first: int
    last: Place
    findings: tuple[str, ...]

    @property
    def is_whole(self) -> bool:
        return not self.findings


def verify(folder: Path, anchor: Path, known: Place | None = None) -> Verdict:
    """`known`: a record that someone has kept elsewhere. Raises OSError."""
    verdict = _verify(folder, anchor, known)
    for _ in range(_AGAIN):
        if verdict.is_whole:
            break
        again = _verify(folder, anchor, known)
        if again.findings == verdict.findings:
            break
        verdict = again
    return verdict


def _verify(folder: Path, anchor: Path, known: Place | None) -> Verdict:
    ends = anchors.read(anchor)  # before the log: what is written meanwhile only makes the log longer
    look = _Look(ends, known)
    for file in files_in(folder):
        look.begin_file(file.first, file.path.name)
        for line in lines_of(file.path):
            look.line(line)
    return look.verdict()


class _Look:
    def __init__(self, ends: anchors.Ends | None, known: Place | None) -> None:
        self._ends = ends
        self._known = known
        self._place = ends.before if ends else BEGINNING
        self._first = 0
        self._records = 0
        self._findings: list[str] = []
        self._saw_last = ends is None or ends.last.number == self._place.number
        self._saw_known = known is None

    def _find(self, text: str) -> None:
        if len(self._findings) < _FINDINGS_MAX:
            self._findings.append(text)

    def begin_file(self, first: int, name: str) -> None:
        if self._records and first != self._place.number + 1:
            self._find(f"{name} begins with {first}, and the record before is {self._place.number}")

    def line(self, line: bytes) -> None:
        told = place_of(line)
        if told is None:
            self._find(f"behind record {self._place.number} stands a line that is no record")
            return
        if told.number > self._place.number + 1:
            gap = f"{self._place.number + 1} to {told.number - 1}"
            self._find(f"records {gap} are missing")
            # Whether this one was changed cannot be told: what it follows is not there.
            before = self._before_gap(told.number)
            if before and hash_of(before, line) != told.hash:
                self._find(f"record {told.number} is not what was written")
        elif told.number <= self._place.number:
            self._find(f"record {told.number} stands behind record {self._place.number}")
            return
        elif hash_of(self._place.hash, line) != told.hash or not stands_last(line, told.hash):
            self._find(f"record {told.number} is not what was written, or does not follow the one before it")
        if _ANCHORLESS in line:
            self._find(f"at record {told.number} the anchor was missing, so nobody can tell what was before")
        self._saw(told)

    def _before_gap(self, number: int) -> str:
        return self._ends.last.hash if self._ends and self._ends.last.number == number - 1 else ""

    def _saw(self, told: Place) -> None:
        self._place = told
        self._records += 1
        self._first = self._first or told.number
        for wanted, what in ((self._ends.last if self._ends else None, "the anchor"), (self._known, "what is known")):
            if wanted is not None and wanted.number == told.number:
                if wanted != told:
                    self._find(f"record {told.number} is another one than {what} has")
                if wanted is self._known:
                    self._saw_known = True
                else:
                    self._saw_last = True

    def verdict(self) -> Verdict:
        if self._ends is None and self._records:
            self._find("there is no anchor, so nobody can tell whether records are missing at the end")
        elif self._ends is not None and not self._saw_last:
            gone = f"{self._place.number + 1} to {self._ends.last.number}"
            self._find(f"records {gone} are missing at the end")
        if not self._saw_known and self._known is not None:
            self._find(f"record {self._known.number}, which is known, is not there")
        return Verdict(self._records, self._first, self._place, tuple(self._findings))


def records_of(folder: Path) -> Iterator[bytes]:
    """All lines, as they stand there. Raises OSError."""
    for file in files_in(folder):
        yield from lines_of(file.path)
