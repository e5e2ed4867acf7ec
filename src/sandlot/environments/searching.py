"""Files that are looked for where there is no scout: what a request asks for, and lines put together with those around
them. The answers are those of the engine."""

import posixpath
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from sandlot.model import FileFind, FileInfo, FileSearch, Match, SearchTally, limits
from sandlot.patterns.matching import Automaton
from sandlot.patterns.parsing import literal_of, parse_path, parse_regex, parse_text
from sandlot.patterns.programs import Choice

BINARY_BYTES = 8 * limits.KIB  # with a zero byte in so many, a file is no text
_BATCH = 200
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Found(Generic[_T]):
    """What was found, all of it."""

    tally: SearchTally
    found: Sequence[_T]

    async def __aiter__(self) -> AsyncIterator[Sequence[_T]]:
        for at in range(0, len(self.found), _BATCH):
            yield self.found[at : at + _BATCH]


class Finding:
    """A search by name. Raises InvalidArgument for a pattern that is none."""

    def __init__(self, request: FileFind) -> None:
        self._kinds = frozenset(request.kinds)
        self._pattern = Automaton(parse_path(request.pattern, ignore_case=request.ignore_case), anywhere=False)
        self.hidden = request.hidden or any(
            part.startswith(".") for part in request.pattern.split("/") if part not in (".", "..")
        )
        self._limit = request.limit
        self.tally = SearchTally()
        self.found: list[FileInfo] = []

    def take(self, path: str, info: FileInfo) -> bool:
        """`path` is told from the directory on. False: there are enough."""
        self.tally.entries += 1
        if self._kinds and info.kind not in self._kinds:
            return True
        if not self._pattern.fits(path.encode("utf-8", "surrogateescape")):
            return True
        if len(self.found) >= self._limit:
            self.tally.is_cut = True
            return False
        self.found.append(info)
        self.tally.found += 1
        return True


class Searching:
    """A search by content. Raises InvalidArgument for a pattern that is none."""

    def __init__(self, request: FileSearch) -> None:
        parse = parse_text if request.literal else parse_regex
        node = parse(request.pattern, ignore_case=request.ignore_case)
        self.needle = literal_of(node)  # in every line that fits; empty: not known
        is_plain = request.literal and not request.ignore_case
        self._pattern = None if is_plain and self.needle else Automaton(node, anywhere=True)
        self._include, self._exclude = _any_of(request.include), _any_of(request.exclude)
        self._request = request
        self.tally = SearchTally()
        self.found: list[Match] = []

    @property
    def is_enough(self) -> bool:
        return self.tally.is_cut

    def enters(self, path: str) -> bool:
        """Whether a directory is looked into."""
        self.tally.entries += 1
        return not _fits(self._exclude, path)

    def wants(self, path: str) -> bool:
        self.tally.entries += 1
        return not _fits(self._exclude, path) and (self._include is None or _fits(self._include, path))

    def take(self, shown: str, lines: Iterable[bytes]) -> None:
        """The lines of one file, without their ends. `shown` is its path as it is told."""
        wanted, context, found = self._request.limit_per_file, self._request.context, 0
        before: deque[str] = deque(maxlen=context)
        waiting: deque[_Fit] = deque()
        for number, line in enumerate(lines, 1):
            fits = (wanted is None or found < wanted) and self._fits(line)
            if not (fits or waiting or context):
                continue
            text = line[: limits.SEARCH_LINE_BYTES].decode("utf-8", "surrogateescape").removesuffix("\r")
            for fit in waiting:
                fit.after.append(text)
            while waiting and len(waiting[0].after) >= context:
                self._tell(shown, waiting.popleft())
            if fits:
                if len(self.found) + len(waiting) >= self._request.limit:
                    self.tally.is_cut = True
                    break
                found += 1
                waiting.append(_Fit(number, text, len(line) > limits.SEARCH_LINE_BYTES, tuple(before)))
            before.append(text)
            if wanted is not None and found >= wanted and not waiting:
                break
        for fit in waiting:
            self._tell(shown, fit)

    def _fits(self, line: bytes) -> bool:
        if self.needle and self.needle not in line:
            return False
        return self._pattern is None or self._pattern.fits(line)

    def _tell(self, shown: str, fit: "_Fit") -> None:
        self.tally.found += 1
        self.found.append(Match(shown, fit.number, fit.text, fit.before, tuple(fit.after), fit.is_cut))


@dataclass(slots=True)
class _Fit:
    """A line that fits, and waits for those behind it."""

    number: int
    text: str
    is_cut: bool
    before: tuple[str, ...]
    after: list[str] = field(default_factory=list[str])


def lines_of(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Of a text; nothing of what is none. Of a line that is very long, the beginning."""
    rest, head, is_long = b"", b"", False
    for piece in pieces:
        if len(head) < BINARY_BYTES:
            head += piece[: BINARY_BYTES - len(head)]
            if b"\0" in head:
                return
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            if not is_long:
                yield line
            is_long = False
        if len(rest) > limits.LINE_BYTES_MAX:
            if not is_long:
                yield rest
            rest, is_long = b"", True
    if rest and not is_long:
        yield rest


def below(top: str, path: str) -> str:
    """A path from a directory on."""
    return posixpath.relpath(path, top)


def _any_of(patterns: Sequence[str]) -> Automaton | None:
    if not patterns:
        return None
    return Automaton(Choice(tuple(parse_path(pattern, anywhere=True) for pattern in patterns)), anywhere=False)


def _fits(pattern: Automaton | None, path: str) -> bool:
    return pattern is not None and pattern.fits(path.encode("utf-8", "surrogateescape"))
