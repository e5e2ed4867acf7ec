"""What may be asked of whoever makes machines."""

from collections.abc import Callable

import pytest

from sandlot.model import (
    Instance,
    InstanceConfig,
    InstanceFilter,
    InstanceState,
    InvalidArgument,
    LimitReached,
    Market,
    check_instance_id,
    limits,
)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: InstanceConfig(""), "image is empty"),
        (lambda: InstanceConfig("a\0b"), "NUL"),
        (lambda: InstanceConfig("x", instance_type=""), "instance_type is empty"),
        (lambda: InstanceConfig("x", zone="z" * 300), "zone is empty or too long"),
        (lambda: InstanceConfig("x", tags={"": "a"}), "tag"),
        (lambda: InstanceConfig("x", tags={"a": "b" * 300}), "tag"),
        (lambda: InstanceConfig("x", disk_bytes=1), "disk_bytes"),
        (lambda: InstanceConfig("x", lifetime_s=float("nan")), "lifetime_s"),
        (lambda: InstanceConfig("x", price_max=1.0), "spot market"),
        (lambda: InstanceConfig("x", request_id="a b"), "request id"),
        (lambda: InstanceFilter({"": ""}), "tag"),
        (lambda: check_instance_id("a:b"), "instance id"),
        (lambda: check_instance_id("../b"), "instance id"),
    ],
)
def test_a_wrong_request_cannot_be_made(make: Callable[[], object], told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        make()


def test_what_is_too_much_names_its_limit() -> None:
    with pytest.raises(LimitReached, match="user data"):
        InstanceConfig("x", user_data=b"a" * (limits.USER_DATA_BYTES_MAX + 1))
    with pytest.raises(LimitReached, match="tags"):
        InstanceConfig("x", tags={str(number): "" for number in range(limits.TAGS_MAX + 1)})
    with pytest.raises(LimitReached, match="request id"):
        InstanceConfig("x", request_id="r" * 65)


def test_user_data_is_not_shown() -> None:
    assert "secret" not in repr(InstanceConfig("x", user_data=b"secret"))


def test_wishes_are_the_capabilities_that_are_needed() -> None:
    assert InstanceConfig("x", tags={"a": "b"}, user_data=b"c").wishes() == set()
    wanted = InstanceConfig("x", "large", disk_bytes=limits.GIB, zone="z", market=Market.SPOT, lifetime_s=9)
    assert wanted.wishes() == {"types", "disk", "zones", "spot", "lifetime"}


def test_a_filter_takes_what_has_all_its_tags_and_is_not_terminated() -> None:
    def one(state: InstanceState, **tags: str) -> Instance:
        return Instance("i", state, "x", tags=tags)

    assert InstanceFilter().takes(one(InstanceState.TERMINATING))
    assert not InstanceFilter().takes(one(InstanceState.TERMINATED))
    assert InstanceFilter(states=frozenset({InstanceState.TERMINATED})).takes(one(InstanceState.TERMINATED))
    assert InstanceFilter({"a": "1"}).takes(one(InstanceState.RUNNING, a="1", b="2"))
    assert not InstanceFilter({"a": "1", "b": "3"}).takes(one(InstanceState.RUNNING, a="1", b="2"))
