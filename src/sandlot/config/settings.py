"""One frozen value per process, read once."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sandlot.model import AUTO, InvalidArgument, limits

_ROOT_DATA = Path("/var/lib/sandlot")


@dataclass(frozen=True, slots=True)
class Settings:
    data: Path
    storage: str
    runtime: str
    sessions_max: int
    warm_pool: int
    keeper: Path  # the guest program


@dataclass(frozen=True, slots=True)
class Variable:
    """One thing that can be set, as it is documented."""

    name: str
    meaning: str
    default: str


VARIABLES = (
    Variable(
        "SANDLOT_DATA_DIR",
        "Where sessions, templates and the journal are kept. One engine at a time holds it.",
        f"`{_ROOT_DATA}` for root, else `~/.local/share/sandlot`",
    ),
    Variable("SANDLOT_STORAGE", "How files of new sessions are kept, when a request does not say.", f"`{AUTO}`"),
    Variable("SANDLOT_RUNTIME", "How new sessions are contained, when a request does not say.", f"`{AUTO}`"),
    Variable("SANDLOT_SESSIONS_MAX", "How many sessions an engine holds at once.", f"{limits.SESSIONS_MAX}"),
    Variable("SANDLOT_WARM_POOL", "How many guests wait for a session, started. The command line keeps none.", "0"),
    Variable("SANDLOT_KEEPER", "The guest program, where it is not the one of the package.", "in the package"),
)


def load(environment: Mapping[str, str] | None = None) -> Settings:
    """Read and check everything. Raises InvalidArgument that names every wrong variable."""
    env = os.environ if environment is None else environment
    wrong: list[str] = []

    def number(name: str, default: int, low: int, high: int) -> int:
        text = env.get(name, "")
        if not text:
            return default
        if text.isascii() and text.isdigit() and len(text) < 10 and low <= int(text) <= high:
            return int(text)
        wrong.append(f"{name} must be a whole number from {low} to {high}, not {text[:32]!r}")
        return default

    settings = Settings(
        data=Path(env.get("SANDLOT_DATA_DIR") or _default_data(env)).absolute(),
        storage=env.get("SANDLOT_STORAGE") or AUTO,
        runtime=env.get("SANDLOT_RUNTIME") or AUTO,
        sessions_max=number("SANDLOT_SESSIONS_MAX", limits.SESSIONS_MAX, 1, 28000),
        warm_pool=number("SANDLOT_WARM_POOL", 0, 0, 1000),
        keeper=Path(env.get("SANDLOT_KEEPER") or Path(__file__).parents[1] / "_bin" / "sandlot-keeper"),
    )
    if wrong:
        raise InvalidArgument("; ".join(wrong))
    return settings


def _default_data(env: Mapping[str, str]) -> Path:
    if os.geteuid() == 0:
        return _ROOT_DATA
    home = env.get("XDG_DATA_HOME") or Path(env.get("HOME") or "/tmp") / ".local" / "share"
    return Path(home) / "sandlot"
