"""Limits refuse what is outside, and say which one it was."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.model import InvalidArgument, LimitReached, Resources, limits

NAMES = ("cpus", "memory_bytes", "disk_bytes", "pids", "open_files", "io_weight")


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
    value: Any = 1 << 30 if name.endswith("_bytes") else 16
    assert Resources(**{name: value}).asked() == (name,)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("memory_bytes", 1),
        ("pids", 1 << 23),
        ("open_files", 3),
        ("io_weight", 1001),
        ("cpus", 0.001),
        ("swap_bytes", -1),
    ],
)
def test_a_limit_that_no_kernel_holds_is_refused(name: str, value: Any) -> None:
    with pytest.raises(InvalidArgument) as refused:
        Resources(**{name: value})
    assert refused.value.context == {"limit": name}


def test_swap_goes_with_memory() -> None:
    with pytest.raises(InvalidArgument, match="memory_bytes"):
        Resources(swap_bytes=0)
    assert Resources(memory_bytes=limits.GIB, swap_bytes=0).asked() == ("memory_bytes", "swap_bytes")


def test_what_is_asked_for_goes_over_defaults() -> None:
    below = Resources(pids=100, memory_bytes=limits.GIB)
    assert Resources(pids=5, cpus=1).over(below) == Resources(cpus=1, memory_bytes=limits.GIB, pids=5)
    assert below.without("pids") == Resources(memory_bytes=limits.GIB)


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
