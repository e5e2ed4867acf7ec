"""Values by kind, out of several sources; what is wrong is gathered, so that one error tells it all."""

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from sandlot.model import AllowedMount, InvalidArgument, check_template, is_digest, split_name


@dataclass(frozen=True, slots=True)
class Variable:
    """One thing that can be set, as it is documented."""

    name: str
    meaning: str
    default: str
    separator: str = ""  # between the parts of a list; empty: it is one value

    @property
    def key(self) -> str:
        """What it is called in a file."""
        return self.name.removeprefix("SANDLOT_").lower()


def _as_it_is(name: str) -> str:
    return name


@dataclass(frozen=True, slots=True)
class Source:
    """Texts by the names of variables, and how such a name is written there."""

    values: Mapping[str, str]
    spell: Callable[[str], str] = field(default=_as_it_is)


class Reader:
    """The first source that has something for a name gives it. An empty text is nothing."""

    def __init__(self, *sources: Source) -> None:
        self._sources = sources
        self.wrong: list[str] = []

    def text(self, name: str, default: str = "") -> str:
        return next(filter(None, (source.values.get(name) for source in self._sources)), default)

    def parts(self, name: str, separator: str) -> list[str]:
        """Of a list. In a file it may be a list there too; then each part is a line."""
        return [part for part in re.split(f"[{separator}\n]", self.text(name)) if part]

    def spelled(self, name: str) -> str:
        """As whoever set it wrote it."""
        return next((source.spell(name) for source in self._sources if source.values.get(name)), name)

    def refuse(self, name: str, must: str, part: str = "") -> None:
        """Not at once: with all others that are wrong."""
        self.wrong.append(f"{self.spelled(name)} must {must}, not {(part or self.text(name))[:64]!r}")

    def check(self) -> None:
        """Raises InvalidArgument that names everything."""
        if self.wrong:
            raise InvalidArgument("; ".join(self.wrong))

    def count(self, name: str, default: int, low: int, high: int) -> int:
        text = self.text(name)
        if not text:
            return default
        if text.isascii() and text.isdigit() and len(text) < 20 and low <= int(text) <= high:
            return int(text)
        self.refuse(name, f"be a whole number from {low} to {high}")
        return default

    def number(self, name: str, default: float, low: float, high: float) -> float:
        text = self.text(name)
        if not text:
            return default
        with suppress(ValueError):
            if low <= float(text) <= high:
                return float(text)
        self.refuse(name, f"be a number from {low:g} to {high:g}")
        return default

    def size(self, name: str, default: int, low: int, high: int) -> int:
        text = self.text(name)
        match = re.fullmatch(r"([0-9]{1,15})([kmgt]?)", text, re.IGNORECASE | re.ASCII)
        value = int(match[1]) * 1024 ** " kmgt".index(match[2].lower() or " ") if match else 0
        if not text or low <= value <= high:
            return value or default
        self.refuse(name, f"be a size of at least {low} bytes, such as 512M or 2G")
        return default

    def one_of(self, name: str, default: str, others: tuple[str, ...]) -> str:
        text = self.text(name, default)
        if text == default or text in others:
            return text
        self.refuse(name, f"be one of {default}, {', '.join(others)}")
        return default

    def flag(self, name: str, *, default: bool) -> bool:
        text = self.text(name)
        if text in ("", "on", "off"):
            return text == "on" if text else default
        self.refuse(name, "be on or off")
        return default

    def templates(self, name: str) -> tuple[tuple[str, int], ...]:
        found: list[tuple[str, int]] = []
        for part in self.parts(name, ","):
            template, _, count = part.partition("=")
            with suppress(InvalidArgument):
                if re.fullmatch(r"[0-9]{1,3}|", count, re.ASCII):
                    whole = template if is_digest(template) else ":".join(split_name(check_template(template)))
                    found.append((whole, int(count or 1)))
                    continue
            self.refuse(name, "hold templates, each with =COUNT or nothing", part)
        return tuple(found)

    def mounts(self, name: str) -> tuple[AllowedMount, ...]:
        found: list[AllowedMount] = []
        for part in self.parts(name, ":"):
            path, _, mode = part.partition("=")
            if path.startswith("/") and mode in ("", "ro", "rw"):
                found.append(AllowedMount(path, mode == "rw"))
            else:
                self.refuse(name, "hold absolute paths, each with =rw or nothing", part)
        return tuple(found)

    def host(self, name: str, default: str) -> str:
        """An address or a name of a machine."""
        text = self.text(name, default)
        if re.fullmatch(r"[a-zA-Z0-9](?:[a-zA-Z0-9.\-]{0,251}[a-zA-Z0-9])?|[0-9a-fA-F:]{2,39}", text, re.ASCII):
            return text
        self.refuse(name, "be the address or the name of a machine")
        return default

    def word(self, name: str, default: str) -> str:
        text = self.text(name, default)
        if re.fullmatch(r"[a-z][a-z0-9]{0,31}", text, re.ASCII):
            return text
        self.refuse(name, "be a word of up to 32 small letters and digits")
        return default

    def dataset(self, name: str, default: str) -> str:
        text = self.text(name, default)
        if not text or re.fullmatch(r"[a-zA-Z][a-zA-Z0-9_.\-]{0,63}", text, re.ASCII):
            return text
        self.refuse(name, "be a name of up to 64 letters, digits, `_`, `.` and `-`")
        return default
