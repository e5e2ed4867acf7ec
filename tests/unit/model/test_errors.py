"""Errors are data: one tree, one code each, and nothing is lost on the way over a wire."""

import ast
import inspect
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.model import ERRORS, SandlotError, Unavailable, error_from_data, error_to_data, errors

TREE = [name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, SandlotError)]
RETRYABLE = {
    "RollbackInProgress",
    "ToolsInFlight",
    "MaxSessionsReached",
    "HostFull",
    "Unavailable",
    "DataDirectoryHeld",
    "HostUnhealthy",
    "DeadlineExceeded",
}
# What a constructor takes by name itself.
OWN_NAMES = {"self", "message", "next_step"}
CONTEXTS = st.dictionaries(
    st.text(max_size=12).filter(lambda key: key not in OWN_NAMES), st.text(max_size=20) | st.integers(), max_size=4
)


def drawn() -> list[tuple[int, str]]:
    """The classes of the tree in the docstring, with their depth."""
    assert errors.__doc__
    found: list[tuple[int, str]] = []
    for line in errors.__doc__.splitlines():
        if match := re.match(r"^ {4}((?:[│├└─ ]{4})*)([A-Z]\w+)(?:  |$)", line):
            found.append((len(match[1]) // 4, match[2]))
    return found


def test_every_class_is_in_the_table_under_a_code_of_its_own() -> None:
    classes = [getattr(errors, name) for name in TREE]
    assert {error.code: error for error in classes} == dict(ERRORS)
    assert len(ERRORS) == len(classes), "two classes share a code"


def test_there_are_few_ways_to_react() -> None:
    """What a caller can do is said by the classes below the root; further down a class only says what was meant."""
    assert len([error for error in SandlotError.__subclasses__() if error.__name__ in TREE]) <= 9
    assert len(TREE) <= 30


def test_the_drawing_is_the_tree() -> None:
    path: list[str] = []
    bases: dict[str, str | None] = {}
    for depth, name in drawn():
        path[depth:] = [name]
        bases[name] = path[depth - 1] if depth else None
    real = {
        name: next((base.__name__ for base in getattr(errors, name).__bases__ if issubclass(base, SandlotError)), None)
        for name in TREE
    }
    assert bases == real


def test_a_class_is_its_code_and_no_more() -> None:
    """One constructor for all: an error that needs its own could not be made from its code."""
    for name in set(TREE) - {"SandlotError"}:
        body = ast.parse(inspect.getsource(getattr(errors, name))).body[0]
        assert isinstance(body, ast.ClassDef)
        assert all(isinstance(line, ast.Assign) for line in body.body), name


def test_only_what_time_can_heal_is_retryable() -> None:
    assert {name for name in TREE if getattr(errors, name).retryable} == RETRYABLE


@pytest.mark.parametrize(
    ("name", "builtin"),
    [
        ("InvalidArgument", ValueError),
        ("NotFound", LookupError),
        ("Unavailable", ConnectionError),
        ("DeadlineExceeded", TimeoutError),
    ],
)
def test_the_matching_builtin_is_inherited(name: str, builtin: type[Exception]) -> None:
    assert issubclass(getattr(errors, name), builtin)


@given(
    code=st.sampled_from(sorted(ERRORS)), message=st.text(max_size=40), next_step=st.text(max_size=20), context=CONTEXTS
)
def test_an_error_crosses_a_wire_whole(code: str, message: str, next_step: str, context: dict[str, Any]) -> None:
    sent = ERRORS[code](message, next_step=next_step, **context)
    data: dict[str, Any] = error_to_data(sent)
    retryable = data.pop("retryable")
    received = error_from_data(**data)
    assert type(received) is type(sent)
    assert (received.code, received.message, received.next_step) == (code, message, next_step)
    assert dict(received.context) == context
    assert received.retryable is retryable
    assert str(received) == str(sent)


@given(
    code=st.text(max_size=30).filter(lambda code: code not in ERRORS), message=st.text(max_size=40), context=CONTEXTS
)
def test_an_unknown_code_becomes_the_root_and_keeps_its_words(code: str, message: str, context: dict[str, Any]) -> None:
    received = error_from_data(code, message, "do this", context)
    assert type(received) is SandlotError
    assert (received.message, received.next_step, dict(received.context)) == (message, "do this", context)


@pytest.mark.parametrize("key", sorted(OWN_NAMES))
def test_no_context_of_a_peer_breaks_the_reading(key: str) -> None:
    assert dict(error_from_data("conflict", "told", "", {key: "x"}).context) == {key: "x"}


def test_the_next_step_is_shown_only_when_there_is_one() -> None:
    assert str(Unavailable("gone")) == "gone"
    assert str(Unavailable("gone", next_step="try again")) == "gone (try again)"
