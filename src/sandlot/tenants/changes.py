"""Changes of keys, noted in the file of keys itself: with the change or not at all. Whoever makes one need not be able
to write the audit log; whoever writes that takes them over from here (`ledger.py`)."""

import hashlib
import json
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sandlot.model import KEYS_TOLD_FILE, KeyInfo, limits

_NAMES: Final = ("at", "uid", "verb", "detail", "before", "state")
_STATE_CHARS: Final = 16
EMPTY: Final = "0" * _STATE_CHARS


@dataclass(frozen=True, slots=True)
class Told:
    """How far the audit log has heard of changes, and what the keys were then."""

    number: int = 0
    state: str = EMPTY


def told_of(info: KeyInfo) -> Mapping[str, Any]:
    told = {"key": info.key_id, "name": info.name, "tenant": info.tenant, "scope": str(info.scope)}
    return told | ({} if info.expires is None else {"expires": round(info.expires)})


def state_of(document: Mapping[str, Any]) -> str:
    """Of all keys and limits, without what is noted of changes."""
    kept = {name: document.get(name) for name in ("keys", "limits")}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:_STATE_CHARS]


def with_those(
    path: Path, noted: Iterable[tuple[str, Mapping[str, Any]]], document: Mapping[str, Any]
) -> list[Mapping[str, Any]]:
    """Of the file that is to be replaced by this document: all that wait to be told, the last one that was, and the new
    ones. A file that was put back into its place has older numbers; none is given twice."""
    old, told = _document(path), read_told(path.parent)
    before = changes_in(old)
    waiting = [change for change in before if change["n"] >= told.number]
    number = max(told.number, *(change["n"] for change in before), 0)
    was, state = state_of(old) if old else EMPTY, state_of(document)
    for at, (verb, detail) in enumerate(noted, start=1):
        made = {"n": number + at, "at": round(time.time(), 3), "uid": os.getuid(), "verb": verb}
        waiting.append({**made, "detail": detail, "before": was, "state": state})
        was = state
    return waiting[-limits.KEY_CHANGES_MAX :]


def read(path: Path) -> list[Mapping[str, Any]]:
    """Those in a file of keys. Nothing where it is not there, or from before they were noted."""
    return changes_in(_document(path))


def _document(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}


def changes_in(document: Any) -> list[Mapping[str, Any]]:
    """Raises ValueError."""
    try:
        found: list[Mapping[str, Any]] = [
            {**{name: change[name] for name in _NAMES}, "n": int(change["n"])} for change in document.get("changes", ())
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"changes of keys are not what was written: {error}") from None
    return found


def read_told(folder: Path) -> Told:
    try:
        told = json.loads((folder / KEYS_TOLD_FILE).read_bytes())
        return Told(int(told["number"]), str(told["state"]))
    except (OSError, ValueError, KeyError, TypeError):
        return Told()


def write_told(folder: Path, told: Told) -> None:
    """Whole or not at all. Raises OSError."""
    path = folder / KEYS_TOLD_FILE
    new = path.with_suffix(".told.new")
    file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(file, json.dumps({"number": told.number, "state": told.state}).encode())
    finally:
        os.close(file)
    new.replace(path)
