"""Changes of keys, on their way into the audit log: each once, in their order, by whoever writes that log.

What is in the log and how far it has heard are two files. A program that is killed in between has told the change and
not noted so: that one is the last record of the log, and is not told again."""

import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol

from sandlot.model import KEYS_FILE
from sandlot.tenants import changes
from sandlot.tenants.changes import EMPTY, Told

_log = logging.getLogger("sandlot.audit")
_KEYS: Final = "keys"
_GOOD_MAX: Final = 100  # that are named where nobody knows what was changed


class Log(Protocol):
    @property
    def last_line(self) -> bytes:
        """As it was found."""
        ...

    def record(self, fields: Mapping[str, Any]) -> int:
        """0 when there is no room for it."""
        ...


class KeyLedger:
    def __init__(self, folder: Path, log: Log) -> None:
        self._folder = folder
        self._path = folder / KEYS_FILE
        self._log = log
        self._seen: tuple[int, int, int] | str | None = "nothing yet"
        self._told = self._found(changes.read_told(folder))

    def _found(self, told: Told) -> Told:
        """What a program that was killed had told last counts too."""
        try:
            record = json.loads(self._log.last_line)
            number, state = int(record["detail"]["change"]), str(record["detail"]["state"])
        except (ValueError, KeyError, TypeError):
            return told
        if not str(record.get("verb")).startswith("key") or number < told.number:
            return told
        found = Told(number, state)
        with suppress(OSError):  # the next time, then
            changes.write_told(self._folder, found)
        return found

    def tell(self) -> None:
        """All that was changed by now. What cannot be told now is told the next time."""
        try:
            seen = self._stamp()
            if seen != self._seen and self._tell():
                self._seen = seen
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            _log.error("changes of keys are not in the audit log yet: %s", error)

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return None
        return status.st_mtime_ns, status.st_ino, status.st_size

    def _tell(self) -> bool:
        """Whether all of it is in the log. Raises OSError, ValueError."""
        try:
            document: Any = json.loads(self._path.read_bytes())
        except FileNotFoundError:
            document = {}
        found = changes.changes_in(document)
        for change in found:
            if change["n"] > self._told.number and not self._tell_one(change):
                return False
        state = changes.state_of(document) if document else EMPTY
        return state == self._told.state or self._tell_foreign(document, state)

    def _tell_one(self, change: Mapping[str, Any]) -> bool:
        number = int(change["n"])
        before = str(change["before"])
        if number > self._told.number + 1:
            lost = {"change": number - 1, "state": before, "from": self._told.number + 1}
            if not self._record(_KEYS, "changes missing", lost):
                return False
        elif before != self._told.state and not self._tell_foreign({}, before):
            return False
        told = {"change": number, "made": change["at"], "uid": change["uid"], **change["detail"]}
        return self._record(str(change["verb"]), "done", {**told, "state": str(change["state"])})

    def _tell_foreign(self, document: Any, state: str) -> bool:
        """Somebody edited the file, put another one in its place, or it is from before changes were noted."""
        good = [str(row["key_id"]) for row in document.get("keys", ()) if row.get("revoked") is None]
        told = {"change": self._told.number, "state": state, "good": good[:_GOOD_MAX]}
        return self._record(_KEYS, "changed by other means", told)

    def _record(self, verb: str, phase: str, detail: Mapping[str, Any]) -> bool:
        if not self._log.record({"who": "local", "verb": verb, "phase": phase, "detail": detail}):
            return False
        self._told = Told(int(detail["change"]), str(detail["state"]))
        changes.write_told(self._folder, self._told)
        return True
