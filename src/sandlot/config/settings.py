"""One frozen value per process, read once."""

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sandlot.model import AUTO, TURN_PREFIX, InvalidArgument, limits

_ROOT_DATA = Path("/var/lib/sandlot")


@dataclass(frozen=True, slots=True)
class Settings:
    data: Path
    storage: str
    runtime: str
    sessions_max: int
    warm_pool: int
    turns_kept: int
    snapshot_prefix: str
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
    Variable(
        "SANDLOT_TURNS_KEPT",
        "How many snapshots of turns a session keeps: the newest. Those that a user named stay. 0 keeps all.",
        f"{limits.TURNS_KEPT}",
    ),
    Variable("SANDLOT_SNAPSHOT_PREFIX", "What snapshots of turns are called: `turn-0001`.", f"`{TURN_PREFIX}`"),
    Variable("SANDLOT_KEEPER", "The guest program, where it is not the one of the package.", "in the package"),
)


def load(environment: Mapping[str, str] | None = None) -> Settings:
    """Read and check everything. Raises InvalidArgument that names every wrong variable."""
    env = os.environ if environment is None else environment
    read = _Reader(env)
    settings = Settings(
        data=Path(env.get("SANDLOT_DATA_DIR") or _default_data(env)).absolute(),
        storage=env.get("SANDLOT_STORAGE") or AUTO,
        runtime=env.get("SANDLOT_RUNTIME") or AUTO,
        sessions_max=read.count("SANDLOT_SESSIONS_MAX", limits.SESSIONS_MAX, 1, 28000),
        warm_pool=read.count("SANDLOT_WARM_POOL", 0, 0, 1000),
        turns_kept=read.count("SANDLOT_TURNS_KEPT", limits.TURNS_KEPT, 0, 1_000_000),
        snapshot_prefix=read.word("SANDLOT_SNAPSHOT_PREFIX", TURN_PREFIX),
        keeper=Path(env.get("SANDLOT_KEEPER") or Path(__file__).parents[1] / "_bin" / "sandlot-keeper"),
    )
    if read.wrong:
        raise InvalidArgument("; ".join(read.wrong))
    return settings


class _Reader:
    """Variables by kind. What is wrong is gathered, so that one error tells it all."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env
        self.wrong: list[str] = []

    def count(self, name: str, default: int, low: int, high: int) -> int:
        text = self._env.get(name, "")
        if not text:
            return default
        if text.isascii() and text.isdigit() and len(text) < 20 and low <= int(text) <= high:
            return int(text)
        self.wrong.append(f"{name} must be a whole number from {low} to {high}, not {text[:32]!r}")
        return default

    def number(self, name: str, default: float, low: float, high: float) -> float:
        text = self._env.get(name, "")
        if not text:
            return default
        with suppress(ValueError):
            if low <= float(text) <= high:
                return float(text)
        self.wrong.append(f"{name} must be a number from {low:g} to {high:g}, not {text[:32]!r}")
        return default

    def word(self, name: str, default: str) -> str:
        text = self._env.get(name) or default
        if re.fullmatch(r"[a-z][a-z0-9]{0,31}", text, re.ASCII):
            return text
        self.wrong.append(f"{name} must be a word of up to 32 small letters and digits, not {text[:32]!r}")
        return default


def _default_data(env: Mapping[str, str]) -> Path:
    if os.geteuid() == 0:
        return _ROOT_DATA
    home = env.get("XDG_DATA_HOME") or Path(env.get("HOME") or "/tmp") / ".local" / "share"
    return Path(home) / "sandlot"
