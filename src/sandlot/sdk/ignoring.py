"""What git would leave out of a directory: `.gitignore` at every level, those above it in the repository, and
`.git/info/exclude`. Blocking."""

import os
import re
from contextlib import suppress
from pathlib import Path

from sandlot.sdk.below import Parts

_NAME = ".gitignore"
_GIT = ".git"
_TEXT_BYTES_MAX = 1 << 20
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC  # git follows no link there either


class Rules:
    """What one file of patterns says: the last one that fits a path decides, and may have nothing to say."""

    def __init__(self, text: bytes) -> None:
        lines = text.removeprefix(b"\xef\xbb\xbf").decode(errors="surrogateescape").split("\n")
        self._rules = [rule for rule in map(_rule, lines) if rule]

    def say(self, path: str, *, is_directory: bool) -> bool | None:
        for ignored, only_directories, fits in reversed(self._rules):
            if (is_directory or not only_directories) and fits.fullmatch(path):
                return ignored
        return None


def _rule(line: str) -> tuple[bool, bool, re.Pattern[str]] | None:
    line = re.sub(r"(?<!\\)((?:\\\\)*) +$", r"\1", line.removesuffix("\r"))
    if not line or line.startswith("#"):
        return None
    ignored = not line.startswith("!")
    pattern = line if ignored else line[1:]
    only_directories = pattern.endswith("/")
    pattern = pattern.removesuffix("/")
    # A slash that is not the last character ties a pattern to the directory of its file.
    tied = "/" in pattern
    try:
        fits = re.compile(("" if tied else "(?:.*/)?") + _translated(pattern.removeprefix("/")), re.DOTALL)
    except (re.error, ValueError):
        return None  # as git: what is no pattern fits nothing
    return ignored, only_directories, fits


def _translated(pattern: str) -> str:
    """As git's wildmatch: `*` and `?` stop at slashes, `**` between them does not."""
    out, at = "", 0
    while at < len(pattern):
        rest = pattern[at:]
        if rest.startswith("**/") and (at == 0 or pattern[at - 1] == "/"):
            out, at = out + "(?:.*/)?", at + 3
        elif rest == "**" and at and pattern[at - 1] == "/":
            out, at = out + ".+", at + 2
        elif rest[0] == "*":
            out, at = out + "[^/]*", at + len(rest) - len(rest.lstrip("*"))
        elif rest[0] == "?":
            out, at = out + "[^/]", at + 1
        elif rest[0] == "[":
            cls, size = _class(rest)
            out, at = out + cls, at + size
        elif rest[0] == "\\":
            if len(rest) == 1:
                raise ValueError("a pattern ends in a backslash")
            out, at = out + re.escape(rest[1]), at + 2
        else:
            out, at = out + re.escape(rest[0]), at + 1
    return out


_POSIX = {"alpha": "a-zA-Z", "digit": "0-9", "alnum": "a-zA-Z0-9", "upper": "A-Z", "lower": "a-z", "space": r"\s"}


def _class(rest: str) -> tuple[str, int]:
    """A set of characters, and how long it stands in the pattern."""
    at = 2 if rest[1:2] in ("!", "^") else 1
    out, first = "", at
    while at < len(rest) and (rest[at] != "]" or at == first):
        if rest.startswith("[:", at) and ":]" in rest[at:]:
            name = rest[at + 2 : rest.index(":]", at)]
            out, at = out + _POSIX[name] if name in _POSIX else out, at + len(name) + 4
        elif rest[at] == "\\" and at + 1 < len(rest):
            out, at = out + re.escape(rest[at + 1]), at + 2
        else:
            out, at = out + (rest[at] if rest[at] == "-" else re.escape(rest[at])), at + 1
    if at >= len(rest):
        raise ValueError("a set of characters has no end")
    return f"(?!/)[{'^' if first == 2 else ''}{out}]", at + 1


class GitIgnore:
    """For one walk through a directory, from the top down: what is below an ignored directory is not asked for."""

    def __init__(self, path: str) -> None:
        self._specs: dict[Parts, Rules] = {}
        self._above: list[tuple[str, Rules]] = []  # what they call the directory, the nearest first
        with suppress(OSError):
            self._look_above(Path(path).resolve())

    def enter(self, folder: int, parts: Parts) -> None:
        found = _read(_NAME, folder)
        if found is not None:
            self._specs[parts] = found

    def ignores(self, parts: Parts, *, is_directory: bool) -> bool:
        if parts[-1] == _GIT:
            return False  # what a repository knows is no file of it, and no pattern of it speaks of that
        for depth in range(len(parts) - 1, -1, -1):
            spec = self._specs.get(parts[:depth])
            said = spec.say("/".join(parts[depth:]), is_directory=is_directory) if spec else None
            if said is not None:
                return said
        return self._asked_above("/".join(parts), is_directory=is_directory)

    def _asked_above(self, path: str, *, is_directory: bool) -> bool:
        for prefix, spec in self._above:
            said = spec.say((prefix + path).rstrip("/"), is_directory=is_directory)
            if said is not None:
                return said
        return False

    def _look_above(self, top: Path) -> None:
        root = next((folder for folder in (top, *top.parents) if (folder / _GIT).exists()), None)
        if root is None:
            return
        for folder in top.parents:
            if not folder.is_relative_to(root):
                break
            spec = _read(folder / _NAME)
            if spec:
                self._above.append((f"{top.relative_to(folder).as_posix()}/", spec))
        spec = _read(_common(root / _GIT) / "info" / "exclude")
        if spec:
            self._above.append((f"{top.relative_to(root).as_posix()}/" if top != root else "", spec))
        if top != root and self._asked_above("", is_directory=True):
            self._above = []  # who asks for an ignored directory by name means it


def _common(git: Path) -> Path:
    """Where a repository keeps what its work trees share."""
    if git.is_dir():
        return git
    folder = git.parent / git.read_text().removeprefix("gitdir:").strip()
    common = folder / "commondir"
    return folder / common.read_text().strip() if common.exists() else folder


def _read(path: str | Path, folder: int | None = None) -> Rules | None:
    try:
        fd = os.open(path, _READ, dir_fd=folder)
    except OSError:
        return None
    try:
        text = os.read(fd, _TEXT_BYTES_MAX)
    except OSError:  # a directory of that name
        return None
    finally:
        os.close(fd)
    return Rules(text)
