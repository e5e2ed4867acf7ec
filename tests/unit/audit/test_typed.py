"""Keys that are pressed: two records for all that somebody types, whoever types beside him."""

from collections.abc import Mapping
from typing import Any

import pytest

from sandlot.audit.typed import Typed
from sandlot.model import TerminalInput, limits


class Log:
    def __init__(self) -> None:
        self.records: list[Mapping[str, Any]] = []

    def record(self, fields: Mapping[str, Any]) -> int:
        self.records.append(fields)
        return len(self.records)

    @property
    def told(self) -> list[tuple[str, str, int]]:
        return [(one["who"], one["phase"], one["detail"].get("sent_bytes", 0)) for one in self.records]


def type_in(typed: Typed, who: str, data: bytes, *, fails: bool = False) -> None:
    request = TerminalInput("s", "t", data)
    typed.began(who, request)
    if not fails:
        typed.wrote(who, request)


def test_what_is_typed_is_told_when_it_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()
    typed = Typed(log)
    for _ in range(1000):
        type_in(typed, "a", b"x")
    type_in(typed, "b", b"xyz")
    type_in(typed, "b", b"xyz", fails=True)
    typed.look()
    assert log.told == [("a", "asked", 0), ("b", "asked", 0)]
    monkeypatch.setattr(limits, "AUDIT_TYPING_IDLE_S", -1.0)
    typed.look()
    assert log.told[2:] == [("a", "done", 1000), ("b", "done", 3)]
    assert [one.get("of") for one in log.records] == [None, None, 1, 2]
    type_in(typed, "a", b"again")
    typed.close()
    assert log.told[4:] == [("a", "asked", 0), ("a", "done", 5)]


def test_so_many_type_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "AUDIT_TYPING_MAX", 2)
    log = Log()
    typed = Typed(log)
    for who in "abc":
        type_in(typed, who, b"x")
    assert log.told == [("a", "asked", 0), ("b", "asked", 0), ("a", "done", 1), ("c", "asked", 0)]
