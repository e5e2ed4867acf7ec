"""Both faces have the same names, arguments and annotations; only what is awaited differs."""

import inspect
import re
from collections.abc import Callable
from typing import Any, get_overloads

import pytest

from sandlot import (
    AsyncCommand,
    AsyncCommands,
    AsyncFiles,
    AsyncSandbox,
    AsyncTemplates,
    Client,
    Command,
    Commands,
    Files,
    Sandbox,
    Templates,
)

TWINS: list[tuple[type, type]] = [
    (AsyncSandbox, Sandbox),
    (AsyncCommands, Commands),
    (AsyncCommand, Command),
    (AsyncFiles, Files),
    (AsyncTemplates, Templates),
]
SPELLED = {"__aenter__": "__enter__", "__aexit__": "__exit__"}
ONLY_SYNC = {"of"}  # wraps a handle of the other face


def public(face: type) -> set[str]:
    names = {name for name in vars(face) if not name.startswith("_") or name in {*SPELLED, *SPELLED.values()}}
    return {SPELLED.get(name, name) for name in names} - ONLY_SYNC


def instance(face: type) -> object:
    arguments = inspect.signature(face).parameters
    values = {"client": Client(), "id": "an-id", "sandbox_id": "another-id"}
    return face(**{name: values[name] for name in arguments if name in values})


def attributes(face: type) -> dict[str, str]:
    """Those of an object that are no methods, with the kind of their values."""
    made = instance(face)
    names = {name for name in dir(made) if not name.startswith("_")}
    values = {name: getattr(made, name) for name in names}
    return {name: type(value).__name__.removeprefix("Async") for name, value in values.items() if not callable(value)}


def spelled(annotation: object) -> str:
    """As both faces would write it."""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    text = re.sub(r"\b(?:sandlot|collections|typing)(?:\.\w+)*\.(?=\w)", "", text)
    return re.sub(r"\bAsync(?=(?:Sandbox|Commands|Command|Files|Iterator|Generator)\b)", "", text)


def shape(function: Callable[..., Any]) -> list[object]:
    """All that a caller has to know of a function."""
    signature = inspect.signature(function)
    told: list[object] = [
        (each.name, each.kind, each.default, spelled(each.annotation)) for each in signature.parameters.values()
    ]
    return [*told, spelled(signature.return_annotation)]


@pytest.mark.parametrize(("twin", "other"), TWINS, ids=lambda face: face.__name__)
def test_names_are_the_same(twin: type, other: type) -> None:
    assert public(twin) | set(attributes(twin)) == public(other) | set(attributes(other))
    assert attributes(twin) == attributes(other)
    assert inspect.getdoc(twin) == inspect.getdoc(other)


def methods() -> list[Any]:
    found = [(twin, other, name) for twin, other in TWINS for name in sorted(vars(twin))]
    shown = [entry for entry in found if not entry[2].startswith("_") or entry[2] in {"__init__", *SPELLED}]
    chosen = [entry for entry in shown if callable(getattr(entry[0], entry[2]))]
    return [pytest.param(*entry, id=f"{entry[1].__name__}.{entry[2]}") for entry in chosen]


@pytest.mark.parametrize(("twin", "other", "name"), methods())
def test_arguments_and_results_are_the_same(twin: type, other: type, name: str) -> None:
    ours, theirs = getattr(twin, name), getattr(other, SPELLED.get(name, name))
    assert shape(ours) == shape(theirs)
    if not name.startswith("_"):
        assert inspect.getdoc(ours) == inspect.getdoc(theirs)


@pytest.mark.parametrize(("twin", "other", "name"), methods())
def test_overloads_are_the_same(twin: type, other: type, name: str) -> None:
    ours = get_overloads(getattr(twin, name))
    theirs = get_overloads(getattr(other, SPELLED.get(name, name)))
    assert [shape(each) for each in ours] == [shape(each) for each in theirs]
    if name in ("run", "read"):
        assert len(ours) == {"run": 2, "read": 3}[name], "a check that reads nothing proves nothing"


@pytest.mark.parametrize(("twin", "other", "name"), methods())
def test_only_one_is_awaited(twin: type, other: type, name: str) -> None:
    ours, theirs = getattr(twin, name), getattr(other, SPELLED.get(name, name))
    gives = str(inspect.signature(ours).return_annotation)
    is_async = inspect.iscoroutinefunction(ours) or "AsyncGenerator" in gives
    assert is_async is (name != "__init__")
    assert not inspect.iscoroutinefunction(theirs)
    assert not inspect.isasyncgenfunction(theirs)


def test_the_check_sees_differences() -> None:
    class Twin:
        async def run(self, cmd: str, *, limit: float = 1.0) -> AsyncCommand: ...

    def differs(other: Callable[..., Any]) -> bool:
        return shape(Twin.run) != shape(other)

    def same(self: object, cmd: str, *, limit: float = 1.0) -> Command: ...
    def other_default(self: object, cmd: str, *, limit: float = 2.0) -> Command: ...
    def other_kind(self: object, cmd: str, limit: float = 1.0) -> Command: ...
    def other_annotation(self: object, cmd: bytes, *, limit: float = 1.0) -> Command: ...
    def other_result(self: object, cmd: str, *, limit: float = 1.0) -> Commands: ...

    assert spelled(AsyncCommand) == spelled(Command) == "Command"
    assert all(differs(each) for each in (other_default, other_kind, other_annotation, other_result))
    assert shape(Twin.run)[1:] == shape(same)[1:], "the first is `self`, whose annotation only functions need"
