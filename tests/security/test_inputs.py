"""Hostile requests to the engine: a typed error for each, and nothing changes."""

from collections.abc import Callable

import pytest

from sandlot.model import (
    CallRequest,
    InvalidArgument,
    LimitReached,
    NotFound,
    SessionFilter,
    SessionSpec,
    limits,
)
from tests.security.stage import Stage

pytestmark = pytest.mark.root

BAD_IDS = {
    "empty": "",
    "dots": "..",
    "climbing": "../x",
    "folder": "a/b",
    "absolute": "/etc",
    "percent": "%2e%2e",
    "line": "a\nb",
    "last line": "a\n",
    "NUL": "a\0b",
    "option": "-rf",
    "hidden": ".x",
    "space": "a b",
    "shell": "$(id)",
    "long": "a" * 5000,
    "not ASCII": "ä",
    "inner dots": "a..b",
    "surrogate": "a\udc80",
}


@pytest.fixture(scope="module")
def session(stage: Stage) -> str:
    session = stage.create()
    stage.shell(session, "echo mine >/workspace/mine")
    return session


@pytest.fixture(autouse=True)
def _unchanged(stage: Stage, session: str) -> object:
    """The same sessions before and after, the same calls, and the session answers."""
    before = stage.wait(stage.host.list(SessionFilter()))
    yield
    after = stage.wait(stage.host.list(SessionFilter()))
    assert [info.session_id for info in after.sessions] == [info.session_id for info in before.sessions]
    assert stage.shell(session, "cat /workspace/mine") == "mine\n"


ID_VERBS: dict[str, Callable[[Stage, str], object]] = {
    "create": lambda stage, bad: stage.wait(stage.host.create(SessionSpec(session_id=bad))),
    "create by request": lambda stage, bad: stage.wait(stage.host.create(SessionSpec(request_id=bad))),
    "create from template": lambda stage, bad: stage.wait(stage.host.create(SessionSpec(template=bad))),
    "get": lambda stage, bad: stage.wait(stage.host.get(bad)),
    "destroy": lambda stage, bad: stage.wait(stage.host.destroy(bad)),
    "calls": lambda stage, bad: stage.wait(stage.host.calls(bad)),
    "call": lambda stage, bad: stage.run(CallRequest(bad, ("true",))),
    "call by id": lambda stage, bad: stage.run(CallRequest("x", ("true",), call_id=bad)),
}


@pytest.mark.parametrize("bad", BAD_IDS.values(), ids=BAD_IDS.keys())
@pytest.mark.parametrize("verb", ID_VERBS)
def test_ids(stage: Stage, verb: str, bad: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        ID_VERBS[verb](stage, bad)
    assert len(str(caught.value)) < 500


def test_unknown_session(stage: Stage) -> None:
    for verb in ("get", "destroy", "calls", "call"):
        with pytest.raises(NotFound):
            ID_VERBS[verb](stage, "s-unknown")


BAD_REQUESTS: dict[str, Callable[[str], CallRequest]] = {
    "cwd with NUL": lambda session: CallRequest(session, ("true",), cwd="/workspace\0/etc"),
    "cwd not encodable": lambda session: CallRequest(session, ("true",), cwd="/\ud800"),
    "user with NUL": lambda session: CallRequest(session, ("true",), user="root\0"),
    "argument with NUL": lambda session: CallRequest(session, ("echo", "a\0b")),
    "no program": lambda session: CallRequest(session, ()),
    "empty program": lambda session: CallRequest(session, ("",)),
    "variable with NUL": lambda session: CallRequest(session, ("true",), envs={"A": "b\0C=d"}),
    "variable with =": lambda session: CallRequest(session, ("true",), envs={"A=B": "c"}),
    "variable without name": lambda session: CallRequest(session, ("true",), envs={"": "c"}),
    "time that is no number": lambda session: CallRequest(session, ("true",), timeout_s=float("nan")),
    "negative time": lambda session: CallRequest(session, ("true",), timeout_s=-1),
    "endless time": lambda session: CallRequest(session, ("true",), timeout_s=float("inf")),
    "negative output": lambda session: CallRequest(session, ("true",), output_bytes_max=-1),
}


@pytest.mark.parametrize("name", BAD_REQUESTS)
def test_malformed_calls(stage: Stage, session: str, name: str) -> None:
    with pytest.raises(InvalidArgument):
        stage.run(BAD_REQUESTS[name](session))


TOO_LARGE: dict[str, Callable[[str], CallRequest]] = {
    "one variable": lambda session: CallRequest(session, ("true",), envs={"A": "x" * (limits.COMMAND_BYTES_MAX + 1)}),
    "many variables": lambda session: CallRequest(
        session, ("true",), envs={f"V{number}": "" for number in range(limits.ARGUMENTS_MAX + 1)}
    ),
    "sum of variables": lambda session: CallRequest(
        session, ("true",), envs={f"V{number}": "x" * 1024 for number in range(1000)}
    ),
    "one argument": lambda session: CallRequest(session, ("true", "x" * (limits.COMMAND_BYTES_MAX + 1))),
    "many arguments": lambda session: CallRequest(session, ("true",) * (limits.ARGUMENTS_MAX + 1)),
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_large_calls(stage: Stage, session: str, name: str) -> None:
    with pytest.raises(LimitReached):
        stage.run(TOO_LARGE[name](session))


@pytest.mark.parametrize(
    "user",
    ["nobody-here", "-1", "65536", "4294967295", "4294967296", "0:65536", "root:root:root", "../etc", " root"],
)
def test_users(stage: Stage, session: str, user: str) -> None:
    """An id outside of the session's range must not become another one by wrapping around."""
    with pytest.raises(InvalidArgument):
        stage.run(CallRequest(session, ("id", "-u"), user=user))


@pytest.mark.parametrize("cwd", ["/nowhere", "/etc/passwd", "x" * 5000, "../../../nowhere"])
def test_directories(stage: Stage, session: str, cwd: str) -> None:
    """Not there, not a directory, too long: told, and nothing is run."""
    with pytest.raises(InvalidArgument):
        stage.run(CallRequest(session, ("echo", "ran"), cwd=cwd))
