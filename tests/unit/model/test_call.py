"""Which requests for a call are refused before anything runs."""

import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.model import CallRequest, InvalidArgument, LimitReached, TerminalSize, limits

NUL = "a\0b"
NOT_ENCODABLE = "\ud800"  # surrogates that `os.fsdecode` makes lie between U+DC80 and U+DCFF

REFUSED: list[dict[str, Any]] = [
    {"session_id": ""},
    {"session_id": "a/b"},
    {"session_id": "s" * 129},
    {"call_id": ""},
    {"call_id": "../x"},
    {"call_id": "c" * 5000},
    {"argv": ()},
    {"argv": ("",)},
    {"argv": ("", "x")},
    {"argv": (NUL,)},
    {"argv": ("ok", NUL)},
    {"argv": ("ok", NOT_ENCODABLE)},
    {"argv": ("ok", "\udc7f")},
    {"cwd": NUL},
    {"cwd": NOT_ENCODABLE},
    {"user": NUL},
    {"user": NOT_ENCODABLE},
    {"envs": {"": "x"}},
    {"envs": {"A=": "x"}},
    {"envs": {"=": "x"}},
    {"envs": {NUL: "x"}},
    {"envs": {"A": NUL}},
    {"envs": {NOT_ENCODABLE: "x"}},
    {"envs": {"A": NOT_ENCODABLE}},
    {"envs": {"N" * 5000 + "=": "x"}},
    {"timeout_s": 0},
    {"timeout_s": -0.5},
    {"timeout_s": float("nan")},
    {"timeout_s": float("inf")},
    {"timeout_s": limits.CALL_TIMEOUT_S_MAX + 1},
    {"output_bytes_max": -1},
    {"output_bytes_max": limits.CALL_OUTPUT_BYTES_MAX + 1},
    {"output_bytes_max": float("nan")},
]


def request(**fields: Any) -> CallRequest:
    given_or_default: dict[str, Any] = {"session_id": "s-1", "argv": ("true",), **fields}
    return CallRequest(**given_or_default)


@pytest.mark.parametrize("fields", REFUSED, ids=lambda fields: repr(fields)[:48])
def test_a_wrong_request_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument) as refused:
        request(**fields)
    assert len(str(refused.value)) < 300, "a refusal does not repeat what may be megabytes"


@pytest.mark.parametrize(
    "fields",
    [
        {"timeout_s": None},
        {"timeout_s": 0.001},
        {"timeout_s": limits.CALL_TIMEOUT_S_MAX},
        {"output_bytes_max": 0},
        {"output_bytes_max": limits.CALL_OUTPUT_BYTES_MAX},
        {"argv": ("x",) * limits.ARGUMENTS_MAX},
        {"argv": ("ok", "")},
        {"argv": ("ok", "\udc80\udcff")},
        {"envs": {"N" * 5000: "="}},
        {"cwd": "d" * 5000},
    ],
    ids=lambda fields: repr(fields)[:48],
)
def test_what_lies_at_the_edge_is_allowed(fields: dict[str, Any]) -> None:
    made = request(**fields)
    assert all(getattr(made, name) == value for name, value in fields.items())


@pytest.mark.parametrize(
    ("what", "fields"),
    [
        ("arguments", {"argv": ("x",) * (limits.ARGUMENTS_MAX + 1)}),
        ("environment variables", {"envs": {str(number): "" for number in range(limits.ARGUMENTS_MAX + 1)}}),
    ],
)
def test_too_many_words_are_refused_by_name(what: str, fields: dict[str, Any]) -> None:
    with pytest.raises(LimitReached) as refused:
        request(**fields)
    assert refused.value.context == {"limit": what}


@given(st.text(max_size=20))
def test_an_argument_passes_exactly_when_a_kernel_can_take_it(word: str) -> None:
    try:
        fits = b"\0" not in os.fsencode(word)
    except UnicodeEncodeError:
        fits = False
    try:
        request(argv=("true", word), envs={"A": word}, cwd=word)
    except InvalidArgument:
        assert not fits
    else:
        assert fits


@given(st.binary(max_size=20).filter(lambda data: b"\0" not in data))
def test_any_bytes_of_a_file_name_can_be_an_argument(data: bytes) -> None:
    assert os.fsencode(request(argv=("cat", os.fsdecode(data))).argv[1]) == data


@given(st.floats() | st.integers())
def test_a_timeout_is_bounded_or_refused(timeout_s: float) -> None:
    if 0.001 <= timeout_s <= limits.CALL_TIMEOUT_S_MAX:
        assert request(timeout_s=timeout_s).timeout_s == timeout_s
        return
    with pytest.raises(InvalidArgument) as refused:
        request(timeout_s=timeout_s)
    assert refused.value.context == {"limit": "timeout_s"}


@pytest.mark.parametrize("fields", [{"rows": 0}, {"columns": 0}, {"rows": -1}, {"columns": 65536}, {"rows": 1 << 40}])
def test_a_terminal_has_a_size_that_a_kernel_knows(fields: dict[str, int]) -> None:
    with pytest.raises(InvalidArgument) as refused:
        TerminalSize(**fields)
    assert refused.value.context == {"limit": next(iter(fields))}


def test_the_largest_terminal_is_allowed() -> None:
    assert TerminalSize(65535, 65535) != TerminalSize()
