"""What people write on a command line, as values. A wrong one is refused with the words that would be right."""

import math
import re
from collections.abc import Mapping, Sequence

from sandlot.model import InvalidArgument, Mount

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)(?:([kmgt])(?:i?b)?)?", re.IGNORECASE)
_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4}
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")


def size(option: str, text: str) -> int:
    """`512M`, `1.5G`, or bytes. The units are powers of 1024."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise InvalidArgument(
            f"{option}: {text!r} is not a size", next_step="give bytes, or a number with K, M, G or T, such as 512M"
        )
    number, unit = match.groups()
    value = float(number) * 1024 ** _POWERS.get((unit or "").lower(), 0)
    # Whole numbers of bytes are taken as they are: a float would round large ones.
    return int(number) if not unit and number.isdigit() else int(value)


def duration(option: str, text: str) -> float:
    """Seconds: `90`, `1.5`, `30s`, `10m`, `2h`, `1h30m`."""
    text = text.strip()
    if _NUMBER.fullmatch(text):
        return float(text)
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise InvalidArgument(
            f"{option}: {text!r} is not a duration",
            next_step="give seconds, or a number with s, m, h or d, such as 10m",
        )
    return math.fsum(float(number) * _SECONDS[unit] for number, unit in parts)


def number(option: str, text: str) -> float:
    if not _NUMBER.fullmatch(text.strip()):
        raise InvalidArgument(f"{option}: {text!r} is not a number", next_step="give a number such as 2 or 0.5")
    return float(text)


def count(option: str, text: str) -> int:
    if not re.fullmatch(r"[0-9]+", text.strip()):
        raise InvalidArgument(f"{option}: {text!r} is not a whole number", next_step="give a number such as 100")
    return int(text)


def pairs(option: str, texts: Sequence[str]) -> dict[str, str]:
    """`KEY=VALUE`, repeated. The value may be empty and may hold further `=`."""
    found: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise InvalidArgument(
                f"{option}: {text!r} has no key and value",
                next_step=f"write {option} KEY=VALUE, the value may be empty",
            )
        if found.get(key, value) != value:
            raise InvalidArgument(f"{option}: {key!r} is given twice", next_step="leave one of them out")
        found[key] = value
    return found


def pairs_or_keys(option: str, texts: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """As `pairs`; a `KEY` alone has its value in the environment. No message tells a value."""
    found: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key:
            raise InvalidArgument(f"{option} has no key", next_step=f"write {option} KEY=VALUE, or {option} KEY")
        if not equals:
            if key not in environment:
                raise InvalidArgument(
                    f"{option}: there is no {key!r} in the environment",
                    next_step=f"set and export it, or write {option} KEY=VALUE",
                )
            value = environment[key]
        if found.get(key, value) != value:
            raise InvalidArgument(f"{option}: {key!r} is given twice", next_step="leave one of them out")
        found[key] = value
    return found


def mount(option: str, text: str) -> Mount:
    """NAME:PATH, with :ro or :rw at the end. A directory of the machine can only be read, unless :rw is asked for."""
    source, colon, rest = text.partition(":")
    target, _, mode = rest.partition(":")
    if not colon or mode not in ("", "ro", "rw"):
        raise InvalidArgument(f"{option}: {text!r} cannot be read", next_step="write NAME:/path or NAME:/path:ro")
    return Mount(source, target, mode == "ro" or (mode == "" and source.startswith("/")))
