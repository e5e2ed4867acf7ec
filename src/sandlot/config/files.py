"""A file of settings: TOML, one key for each variable, in small letters and without `SANDLOT_`."""

import tomllib
from functools import partial
from pathlib import Path

from sandlot.config.reading import Source
from sandlot.config.variables import ENGINE, SERVER
from sandlot.model import InvalidArgument

_PREFIX = "SANDLOT_"
_BYTES_MAX = 1 << 20


def file_source(path: Path) -> Source:
    """Raises InvalidArgument when it cannot be read, and for what is no setting at all."""
    try:
        with path.open("rb") as file:
            content = tomllib.loads(file.read(_BYTES_MAX).decode())
    except OSError as error:
        raise InvalidArgument(f"the file of settings {path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # not TOML, or not UTF-8
        raise InvalidArgument(f"the file of settings {path} is not TOML: {error}"[:500]) from error
    known = {variable.key for variable in (*ENGINE, *SERVER)}
    wrong = [f"{key} in {path} is a table" for key, value in content.items() if isinstance(value, dict)]
    wrong += [f"{key} in {path} is no setting" for key in content if key not in known]
    if wrong:
        step = "write every setting at the top of the file, `key = value`; docs/reference/configuration.md has all"
        raise InvalidArgument("; ".join(wrong)[:4000], next_step=step)
    return Source({_PREFIX + key.upper(): _text(value) for key, value in content.items()}, partial(_spell, path))


def _spell(path: Path, name: str) -> str:
    return f"{name.removeprefix(_PREFIX).lower()} in {path}"


def _text(value: object) -> str:
    """As it would stand in a variable. The parts of a list stand in lines until it is known what separates them."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list):
        return "\n".join(map(_text, value))  # pyright: ignore[reportUnknownArgumentType] - of any type: it becomes text
    return str(value)
