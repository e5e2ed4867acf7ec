"""Limits refuse what is outside, and say which one it was."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.model import InvalidArgument, LimitReached, Resources, limits

NAMES = ("cpus", "memory_bytes", "disk_bytes", "pids")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [0, -1, -0.5, float("nan"), float("-inf")])
def test_a_share_of_nothing_is_refused(name: str, value: Any) -> None:
    with pytest.raises(InvalidArgument) as refused:
        Resources(**{name: value})
    assert refused.value.context == {"limit": name}


@pytest.mark.parametrize("name", NAMES)
def test_a_limit_without_end_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgument):
        Resources(**{name: float("inf")})  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("name", NAMES)
def test_what_was_asked_for_is_known(name: str) -> None:
    assert Resources(**{name: 1}).asked() == (name,)


def test_nothing_is_asked_for_by_default() -> None:
    assert Resources().asked() == ()


@given(st.floats(), st.floats(allow_nan=False), st.floats(allow_nan=False))
def test_within_means_within(value: float, low: float, high: float) -> None:
    if low <= value <= high:
        limits.within("thing", value, low, high)
        return
    with pytest.raises(InvalidArgument) as refused:
        limits.within("thing", value, low, high)
    assert refused.value.context == {"limit": "thing"}


@given(st.integers(), st.integers())
def test_at_most_names_its_limit(value: int, high: int) -> None:
    if value <= high:
        limits.at_most("things", value, high)
        return
    with pytest.raises(LimitReached) as refused:
        limits.at_most("things", value, high)
    assert refused.value.context == {"limit": "things"}
    assert str(high) in refused.value.message
