"""What a build does not copy: the rules of a file `.dockerignore`, as Docker reads them."""

import posixpath
import re
from pathlib import Path

from sandlot.model import InvalidArgument

NAME = ".dockerignore"
_BYTES_MAX = 1 << 20
_PIECE = re.compile(r"\*\*/?|\*|\?|\\.|\[[^\]]*\]|.", re.DOTALL)


def _pattern(text: str) -> re.Pattern[str]:
    """Stars stop at a slash, two of them do not; the rest is as shells have it."""
    out: list[str] = []
    for piece in _PIECE.findall(text):
        if piece == "**/":
            out.append("(?:.*/)?")
        elif piece == "**":
            out.append(".*")
        elif piece == "*":
            out.append("[^/]*")
        elif piece == "?":
            out.append("[^/]")
        elif piece[0] == "[" and len(piece) > 2:
            inner = piece[1:-1].replace("\\", "\\\\")
            out.append(f"[{inner}]")
        else:
            out.append(re.escape(piece[-1]))
    return re.compile("".join(out), re.DOTALL)


class DockerIgnore:
    """The last rule that fits a path, or something above it, decides."""

    def __init__(self, text: str) -> None:
        self._rules: list[tuple[re.Pattern[str], bool]] = []
        for number, line in enumerate(text.splitlines(), start=1):
            rule = line.strip()
            if not rule or line.startswith("#"):
                continue
            taken_back = rule.startswith("!")
            path = posixpath.normpath(rule.removeprefix("!").strip() or "!").lstrip("/")
            if path == "!":
                raise InvalidArgument(f"{NAME}, line {number}: a rule that takes back nothing")
            if path != ".":  # the directory itself cannot be left out
                self._add(path, number, taken_back=taken_back)

    def _add(self, path: str, number: int, *, taken_back: bool) -> None:
        try:
            self._rules.append((_pattern(path), taken_back))
        except re.error as error:
            raise InvalidArgument(f"{NAME}, line {number}: {path[:100]!r} is no pattern: {error}") from error

    @classmethod
    def of(cls, context: Path) -> "DockerIgnore":
        """None of them when there is no such file. Raises InvalidArgument."""
        try:
            with (context / NAME).open("rb") as file:
                return cls(file.read(_BYTES_MAX).decode())
        except FileNotFoundError:
            return cls("")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidArgument(f"{NAME} cannot be read: {error}") from error

    def ignores(self, path: str) -> bool:
        """`path`: below the directory, without a slash at its ends."""
        parts = path.split("/")
        above = ["/".join(parts[:depth]) for depth in range(1, len(parts) + 1)]
        ignored = False
        for pattern, taken_back in self._rules:
            if ignored is taken_back and any(pattern.fullmatch(one) for one in above):
                ignored = not taken_back
        return ignored
