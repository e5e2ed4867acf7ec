"""Arguments of tools: every mistake is told, and nothing that a model can send breaks the check."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.model import ToolProblem
from sandlot.tools.arguments import check_arguments
from sandlot.tools.contained.command import Kept
from sandlot.tools.schemas import count, flag, parameters, text, texts
from sandlot.tools.toolbox import BUILT_IN

SCHEMA = parameters("name", name=text("Name."), n=count("Number.", 1, 9), on=flag("On."), many=texts("Many."))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def test_what_fits_is_given_back() -> None:
    given = {"name": "x", "n": 3.0, "on": True, "many": ["a"]}
    assert check_arguments("t", SCHEMA, given) == {"name": "x", "n": 3, "on": True, "many": ["a"]}
    assert check_arguments("t", SCHEMA, {"name": "x", "n": None}) == {"name": "x"}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "name is missing"),
        ({"name": None}, "name is missing"),
        ({"name": ""}, "name is empty"),
        ({"name": 1}, "name must be a string, not 1"),
        ({"name": "x", "n": True}, "n must be a whole number, not True"),
        ({"name": "x", "n": 10}, "n must lie between 1 and 9, not 10"),
        ({"name": "x", "n": float("nan")}, "n must be a whole number, not nan"),
        ({"name": "x", "on": "yes"}, "on must be true or false, not 'yes'"),
        ({"name": "x", "many": "a"}, "many must be a list, not 'a'"),
        ({"name": "x", "many": []}, "many has no entry"),
        ({"name": "x", "many": ["a", 2]}, "many[1] must be a string, not 2"),
        ({"name": "x", "other": 1}, "'other' is no parameter of it (it has name, n, on, many)"),
    ],
)
def test_what_does_not_fit_is_told(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ToolProblem, match="t: ") as raised:
        check_arguments("t", SCHEMA, given)
    assert str(raised.value) == f"t: {told}"


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(ToolProblem) as raised:
        check_arguments("t", SCHEMA, {"n": 0, "on": 1})
    assert str(raised.value).count(";") == 2


@given(st.dictionaries(st.sampled_from(["path", "cmd", "ref", "paths", "n", "args", "message", "x"]), JSON))
def test_anything_is_taken_or_refused_in_words(given: dict[str, Any]) -> None:
    for entry in BUILT_IN:
        with suppress(ToolProblem):
            taken = check_arguments(entry.tool.name, entry.tool.parameters, given)
            assert set(taken) <= set(entry.tool.parameters["properties"])


@given(st.lists(st.binary(max_size=50)), st.integers(2, 60).map(lambda n: n * 2))
def test_what_is_kept_of_a_stream(pieces: list[bytes], bytes_max: int) -> None:
    kept, whole = Kept(bytes_max), b"".join(pieces)
    for piece in pieces:
        kept.add(piece)
    assert kept.is_cut == (len(whole) > bytes_max)
    if not kept.is_cut:
        assert kept.text() == whole.decode(errors="replace")
        return
    half = bytes_max // 2
    left_out = f"\n[{len(whole) - bytes_max} bytes left out]\n"
    assert kept.text() == left_out.join(piece.decode(errors="replace") for piece in (whole[:half], whole[-half:]))
