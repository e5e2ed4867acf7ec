"""Patterns of names, as `FileFind` describes them."""

import re
from functools import lru_cache

from sandlot.model import InvalidArgument

_PART = re.compile(r"\*\*/|\*\*|\*|\?|\[!?[^\]]+\]|\{[^{}]*\}|.", re.DOTALL)


def fits(pattern: str, path: str, *, ignore_case: bool = False) -> bool:
    """Raises InvalidArgument for a pattern that is none."""
    return _compiled(pattern, ignore_case).fullmatch(path) is not None


def fits_name(pattern: str, path: str) -> bool:
    """One without a slash fits a name in any directory, and a directory with all that is in it."""
    names = path.split("/")
    if "/" not in pattern:
        return any(fits(pattern, name) for name in names)
    return any(fits(pattern, "/".join(names[: count + 1])) for count in range(len(names)))


@lru_cache(maxsize=256)
def _compiled(pattern: str, ignore_case: bool) -> "re.Pattern[str]":
    try:
        return re.compile("".join(map(_part, _PART.findall(pattern))), re.IGNORECASE if ignore_case else 0)
    except re.error as error:
        raise InvalidArgument(f"{pattern!r} is no pattern: {error}") from error


def _part(part: str) -> str:
    match part:
        case "**/":
            return "(?:[^/]+/)*"
        case "**":
            return ".*"
        case "*":
            return "[^/]*"
        case "?":
            return "[^/]"
        case _ if part.startswith("[") and len(part) > 1:
            return part.replace("[!", "[^", 1)
        case _ if part.startswith("{") and len(part) > 1:
            return f"(?:{'|'.join(_part_of_choice(choice) for choice in part[1:-1].split(','))})"
        case _:
            return re.escape(part)


def _part_of_choice(text: str) -> str:
    return "".join(map(_part, _PART.findall(text)))
