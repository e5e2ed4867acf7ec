"""Files that are looked for: by name, and by what is in them."""

from dataclasses import dataclass

from sandlot.model import limits
from sandlot.model.call import check_text
from sandlot.model.errors import InvalidArgument
from sandlot.model.file import FileKind, FileRequest


@dataclass(frozen=True, slots=True)
class FileFind(FileRequest):
    """What is below a directory and fits a pattern, in order: by name, each directory before what is in it.

    A pattern is compared with the path from the directory on. `*` and `?` stand for anything in a name, `**` for any
    directories, `[a-z]` for one character, `{a,b}` for one of several: `**/*.py`, `src/*/test_?.{py,toml}`.
    """

    pattern: str = "**"
    kinds: tuple[FileKind, ...] = ()  # empty: all
    hidden: bool = False  # also what begins with a dot, and what is below it
    ignore_case: bool = False
    limit: int = limits.FIND_RESULTS

    def __post_init__(self) -> None:
        FileRequest.__post_init__(self)
        check_pattern("the pattern", self.pattern)
        limits.within("limit", self.limit, 1, limits.FIND_RESULTS_MAX)


@dataclass(frozen=True, slots=True)
class FileSearch(FileRequest):
    """Lines that fit a pattern, in the files below a directory or in one file; files in the order of their paths.

    The pattern is a regular expression without references and look-around: what it takes to match grows with the text
    alone. Files with a zero byte near their beginning are not text and are left out. `include` and `exclude` are
    patterns as for FileFind; one without a slash fits a name in any directory.
    """

    pattern: str = ""
    literal: bool = False  # the pattern is text
    ignore_case: bool = False
    include: tuple[str, ...] = ()  # empty: all files
    exclude: tuple[str, ...] = ()  # files, and directories with all that is in them
    hidden: bool = False
    context: int = 0  # lines before and behind each
    limit: int = limits.SEARCH_RESULTS
    limit_per_file: int | None = None

    def __post_init__(self) -> None:
        FileRequest.__post_init__(self)
        check_pattern("the pattern", self.pattern)
        limits.at_most("patterns", len(self.include) + len(self.exclude), limits.SEARCH_PATTERNS_MAX)
        for pattern in (*self.include, *self.exclude):
            check_pattern("a pattern of files", pattern)
        limits.within("context", self.context, 0, limits.SEARCH_CONTEXT_MAX)
        limits.within("limit", self.limit, 1, limits.FIND_RESULTS_MAX)
        if self.limit_per_file is not None:
            limits.within("limit_per_file", self.limit_per_file, 1, limits.FIND_RESULTS_MAX)


@dataclass(frozen=True, slots=True)
class Match:
    path: str  # absolute, as the session sees it
    line: int  # beginning with 1
    text: str  # bytes that are no UTF-8 as surrogate escapes; cut when it is long
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    is_cut: bool = False


@dataclass(slots=True)
class SearchTally:
    """What was looked at so far. It is complete at the end of the stream."""

    entries: int = 0  # files and directories that were looked at
    found: int = 0
    unreadable: int = 0  # files and directories that the user may not read
    is_cut: bool = False  # there is more than the limit


def check_pattern(what: str, pattern: str) -> None:
    if not pattern:
        raise InvalidArgument(f"{what} is empty", next_step="give what is looked for")
    if len(pattern) > limits.SEARCH_PATTERN_CHARS_MAX:
        raise InvalidArgument(
            f"{what} has more than {limits.SEARCH_PATTERN_CHARS_MAX} characters", limit="search_pattern_chars"
        )
    check_text(what, pattern)
    if "\n" in pattern:
        raise InvalidArgument(f"{what} has a newline", next_step="look for one line")
