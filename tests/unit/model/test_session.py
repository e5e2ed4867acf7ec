"""The states of a session, and which requests for one are refused."""

from collections.abc import Mapping
from itertools import product
from typing import Any

import pytest

from sandlot.model import (
    TRANSITIONS,
    InvalidArgument,
    InvalidState,
    LimitReached,
    SandlotError,
    SessionDestroying,
    SessionEvent,
    SessionFailed,
    SessionFilter,
    SessionPaused,
    SessionSpec,
    SessionState,
    limits,
    refusal,
    transition,
)

REFUSALS: Mapping[SessionState, type[SandlotError]] = {
    SessionState.CREATING: InvalidState,
    SessionState.ACTIVE: InvalidState,
    SessionState.PAUSED: SessionPaused,
    SessionState.DESTROYING: SessionDestroying,
    SessionState.FAILED: SessionFailed,
}
TEXT_THAT_NO_KERNEL_TAKES = "\ud800"  # a surrogate that no undecodable byte stands for


@pytest.mark.parametrize(("state", "event"), list(product(SessionState, SessionEvent)))
def test_every_event_is_a_transition_or_a_typed_error(state: SessionState, event: SessionEvent) -> None:
    after = TRANSITIONS.get((state, event))
    if after is not None:
        assert transition("s-1", state, event) is after
        return
    with pytest.raises(REFUSALS[state]) as refused:
        transition("s-1", state, event)
    assert type(refused.value) is REFUSALS[state]
    assert refused.value.context == {"session_id": "s-1"}
    assert str(event) in refused.value.message


def test_every_session_can_be_destroyed() -> None:
    for state in set(SessionState) - {SessionState.DESTROYING}:
        assert TRANSITIONS[state, SessionEvent.DESTROY] is SessionState.DESTROYING


def test_nothing_leaves_destroying() -> None:
    assert not [event for state, event in TRANSITIONS if state is SessionState.DESTROYING]


def test_a_failed_session_is_only_recovered_destroyed_or_fails_again() -> None:
    leaving = {event: after for (state, event), after in TRANSITIONS.items() if state is SessionState.FAILED}
    assert leaving == {
        SessionEvent.RECOVER: SessionState.ACTIVE,
        SessionEvent.DESTROY: SessionState.DESTROYING,
        SessionEvent.FAIL: SessionState.FAILED,
    }


def test_every_session_can_fail_until_it_is_destroyed() -> None:
    for state in set(SessionState) - {SessionState.DESTROYING}:
        assert TRANSITIONS[state, SessionEvent.FAIL] is SessionState.FAILED


def test_only_creating_ends_by_created_and_nothing_returns_to_creating() -> None:
    assert [state for state, event in TRANSITIONS if event is SessionEvent.CREATED] == [SessionState.CREATING]
    assert SessionState.CREATING not in TRANSITIONS.values()


def test_a_refusal_tells_why_the_session_failed() -> None:
    told = refusal("s-1", SessionState.FAILED, "it takes no calls", "its guest ended")
    assert "its guest ended" in told.message
    assert told.next_step


def test_secrets_do_not_show() -> None:
    spec = SessionSpec(secrets={"TOKEN": "hunter2"})
    assert "hunter2" not in repr(spec)
    assert "TOKEN" not in repr(spec)
    assert "hunter2" not in f"{spec} {spec!s}"


REFUSED_SPECS: list[dict[str, Any]] = [
    {"session_id": ""},
    {"session_id": "../up"},
    {"session_id": "a" * 129},
    {"request_id": "a/b"},
    {"request_id": ""},
    {"template": "../../etc"},
    {"template": ""},
    {"template": "t" * 5000},
    {"labels": {"": "x"}},
    {"labels": {"a\0b": "x"}},
    {"envs": {"": "x"}},
    {"envs": {"A=B": "x"}},
    {"envs": {"A\0": "x"}},
    {"envs": {"A": "x\0"}},
    {"envs": {"A": TEXT_THAT_NO_KERNEL_TAKES}},
    {"envs": {TEXT_THAT_NO_KERNEL_TAKES: "x"}},
    {"user": ""},
    {"user": "root\0"},
    {"user": "u" * 5000},
    {"timeout_s": 0},
    {"timeout_s": -1.0},
    {"timeout_s": float("nan")},
    {"timeout_s": float("inf")},
    {"timeout_s": limits.SESSION_LIFETIME_S_MAX * 1.01},
    {"ports": (0,)},
    {"ports": (80, 65536)},
    {"ports": (-1,)},
]


@pytest.mark.parametrize("fields", REFUSED_SPECS, ids=lambda fields: repr(fields)[:48])
def test_a_wrong_request_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        SessionSpec(**fields)


def test_a_user_that_cannot_be_encoded_is_refused() -> None:
    with pytest.raises(InvalidArgument):
        SessionSpec(user=TEXT_THAT_NO_KERNEL_TAKES)


def test_more_variables_than_a_command_may_have_are_refused() -> None:
    with pytest.raises(LimitReached):
        SessionSpec(envs={f"V{number}": "" for number in range(limits.ARGUMENTS_MAX + 1)})


def test_bytes_that_are_not_text_may_be_given_as_escapes() -> None:
    assert SessionSpec(envs={"A": "\udcff"}).envs == {"A": "\udcff"}


def test_defaults_are_a_valid_request() -> None:
    spec = SessionSpec()
    assert spec.session_id is None
    assert spec.timeout_s == limits.SESSION_LIFETIME_S
    assert spec.resources.asked() == ()


@pytest.mark.parametrize("limit", [0, -1, limits.LIST_PAGE_MAX + 1, float("nan"), float("inf")])
def test_a_page_has_bounds(limit: Any) -> None:
    with pytest.raises(InvalidArgument) as refused:
        SessionFilter(limit=limit)
    assert refused.value.context == {"limit": "limit"}


@pytest.mark.parametrize("limit", [1, limits.LIST_PAGE_MAX])
def test_the_bounds_of_a_page_are_allowed(limit: int) -> None:
    assert SessionFilter(limit=limit).limit == limit
